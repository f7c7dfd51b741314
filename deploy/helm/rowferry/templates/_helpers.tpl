{{- define "rowferry.name" -}}
{{- printf "%s" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "rowferry.labels" -}}
app.kubernetes.io/name: rowferry
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "rowferry.selector" -}}
app.kubernetes.io/name: rowferry
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "rowferry.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "rowferry.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "rowferry.name" .) }}
{{- else -}}
{{ required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{- define "rowferry.metaSecret" -}}
{{- if .Values.postgres.enabled -}}
{{ required "postgres.secret is needed: a Secret with the keys password and address" .Values.postgres.secret }}
{{- else -}}
{{ required "secrets.meta is needed: a Secret with the key address (or set postgres.enabled)" .Values.secrets.meta }}
{{- end -}}
{{- end -}}

{{- define "rowferry.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}
