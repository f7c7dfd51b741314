#!/bin/sh
# Lints the chart and renders it in each of its shapes: sh deploy/helm/lint.sh [HELM]
# Helm comes from its Go module where there is none: go install helm.sh/helm/v3/cmd/helm@v3.19.0
set -eu

helm=${1:-helm}
chart=$(dirname "$0")/rowferry
least="--set secrets.meta=meta --set secrets.token=token"

"$helm" lint --strict "$chart" $least
shape() {
    echo "== $*"
    "$helm" template shop "$chart" --kube-version 1.33.0 --namespace feeds "$@" > /dev/null
}
shape $least
shape $least --set spark.mode=kubernetes --set grpc.enabled=true --set-string 'spark.conf.spark\.a=1'
shape --set secrets.token=token --set postgres.enabled=true --set postgres.secret=pg \
    --set secrets.tls=tls --set secrets.secretKey=key --set 'extraArgs={--allow-host=*}'
shape $least --set networkPolicy.egress[0].ports[0].port=3306 --set serviceAccount.create=false \
    --set serviceAccount.name=mine
# What is missing or wrong must be refused, in words.
refused() {
    words=$1
    shift
    "$helm" template shop "$chart" --kube-version 1.33.0 "$@" 2>&1 > /dev/null | grep -q "$words" ||
        { echo "not refused: $*" >&2; exit 1; }
}
refused 'secrets.token is needed' --set secrets.meta=meta
refused 'secrets.meta is needed' --set secrets.token=token
refused 'postgres.secret is needed' --set secrets.token=token --set postgres.enabled=true
refused 'spark.mode is' $least --set spark.mode=yarn
echo "== passed"
