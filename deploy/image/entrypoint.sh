#!/bin/sh
# Runs `rowferry …`; or, where Spark on Kubernetes starts this image as an executor, that.
set -eu

# Numba uses only machine code in a folder that it may write, which the image's own is not.
if [ -z "${NUMBA_CACHE_DIR:-}" ]; then
    export NUMBA_CACHE_DIR="${HOME:-/var/lib/rowferry}/kernels"
    [ -d "$NUMBA_CACHE_DIR" ] || cp -R -p /opt/rowferry/kernels "$NUMBA_CACHE_DIR" || true
fi

if [ "${1:-}" != executor ]; then
    exec /opt/rowferry/bin/rowferry "$@"
fi

# Spark numbers the options of Java: SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, …
set --
number=0
while eval "option=\${SPARK_JAVA_OPT_$number-}" && [ -n "$option" ]; do
    set -- "$@" "$option"
    number=$((number + 1))
done
home=$(/opt/rowferry/bin/python -c 'import pyspark, os; print(os.path.dirname(pyspark.__file__))')
export SPARK_HOME="$home" PYSPARK_PYTHON=/opt/rowferry/bin/python
exec java "$@" -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$home/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
