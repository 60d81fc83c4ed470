{{- define "tidelog.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "tidelog.labels" -}}
app.kubernetes.io/name: tidelog
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tidelog.metadata" -}}
{{- if and (gt (int .Values.replicas) 1) (or (not .Values.stores.metadata) (not .Values.stores.objects)) -}}
{{- fail "replicas: several nodes need stores.metadata and stores.objects, which all of them reach; set replicas to 1 for a node that keeps everything on its volume" -}}
{{- end -}}
{{- end -}}
