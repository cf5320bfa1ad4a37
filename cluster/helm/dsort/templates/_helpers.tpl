{{- define "dsort.image" -}}
{{ required "image.repository: an image built from cluster/Dockerfile" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "dsort.selector" -}}
app.kubernetes.io/name: dsort
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dsort.labels" -}}
{{ include "dsort.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "dsort.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "dsort.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end }}

{{- define "dsort.databaseUrl" -}}
- name: DSORT_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.database.secretName }}
      key: {{ .Values.database.secretKey }}
{{- end }}

{{- define "dsort.rayPod" -}}
serviceAccountName: {{ .Release.Name }}
enableServiceLinks: false  # DSORT_PORT and the like are no settings of ours
securityContext:
  {{- include "dsort.podSecurity" . | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
