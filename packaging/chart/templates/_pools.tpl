{{/* A YAML list with the resource of each pool whose name Kubernetes allows. The default pool has the name "". */}}
{{- define "cni.resources" -}}
- {pool: "", resource: "cni-ipvlan-vpc-k8s/addresses"}
{{- range $name, $_ := (get .Values.plugin "pools" | default dict) }}
{{- if regexMatch "^[-A-Za-z0-9_.]{0,52}[A-Za-z0-9]$" $name }}
- {pool: {{ $name | quote }}, resource: {{ printf "cni-ipvlan-vpc-k8s/addresses-%s" $name | quote }}}
{{- end }}
{{- end }}
{{- end }}
{{/* A CEL expression for the pool that serves a pod's namespace. As in the plugin, the pool with the most specific entry serves it. */}}
{{- define "cni.served" -}}
{{- $entries := list }}
{{- range $name, $pool := (get .Values.plugin "pools" | default dict) }}
{{- range (get $pool "namespaces" | default list) }}
{{- $begin := trimSuffix "*" . }}
{{- $open := hasSuffix "*" . }}
{{- $width := add (len $begin) (ternary 0 1 $open) }}
{{- $entries = append $entries (printf "%05d|%t|%s|%s" $width $open $begin $name) }}
{{- end }}
{{- end }}
{{- range (sortAlpha $entries | reverse) }}
{{- $e := splitn "|" 4 . }}
{{- if eq $e._1 "true" }}request.namespace.startsWith({{ $e._2 | toJson }}){{ else }}request.namespace == {{ $e._2 | toJson }}{{ end }} ? {{ $e._3 | toJson }} : {{ end -}}
""
{{- end }}
