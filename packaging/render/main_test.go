// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admission "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const (
	release   = "cni-ipvlan-vpc-k8s"
	namespace = "kube-system"
)

// rendered returns the chart's objects for these values, as YAML.
func rendered(t *testing.T, values string) string {
	t.Helper()
	text, err := render("../chart", release, namespace, values)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// valuesOf writes a file of values, and returns its path. The file has the values of the shipped manifest, and the
// values in the argument more.
func valuesOf(t *testing.T, more string) string {
	t.Helper()
	var all map[string]any
	for _, text := range []string{read(t, "../kubernetes/values.yaml"), more} {
		if err := yaml.Unmarshal([]byte(text), &all); err != nil {
			t.Fatal(err)
		}
	}
	text, err := yaml.Marshal(all)
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// documents returns the documents of a YAML file as JSON. In this JSON, the order of the keys is always the same.
func documents(t *testing.T, text string) (all []string) {
	t.Helper()
	for doc := range strings.SplitSeq("\n"+text, "\n---\n") {
		b, err := yaml.YAMLToJSONStrict([]byte(doc))
		if err != nil {
			t.Fatalf("%v:\n%s", err, doc)
		}
		if string(b) != "null" {
			all = append(all, string(b))
		}
	}
	return all
}

// TestManifests checks that the shipped manifests have the objects that the chart makes from the shipped values. If
// UPDATE is set, the test writes the manifests.
func TestManifests(t *testing.T) {
	for manifest, values := range map[string]string{"systemd.yaml": "values.yaml",
		"maintain.yaml": "values-maintain.yaml"} {
		text := "# kubectl apply -f. Change the words in CAPITALS, the subnet tag and the security groups. After a " +
			"change of the conflist: kubectl -n kube-system\n" +
			"# rollout restart daemonset cni-ipvlan-vpc-k8s. It is the chart with " + values +
			" of this directory; a test compares them.\n" + rendered(t, "../kubernetes/"+values)
		file := "../kubernetes/" + manifest
		if os.Getenv("UPDATE") != "" {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, got := documents(t, text), documents(t, read(t, file))
		if len(want) != 2 || !slices.Equal(want, got) {
			t.Errorf("%s is not the chart: run the test with UPDATE=1\n%s\n%s", file, want, got)
		}
	}
}

// policies returns the policy and the binding that make pods ask for addresses. Unknown fields are errors.
func policies(
	t *testing.T, text string,
) (p admission.MutatingAdmissionPolicy, b admission.MutatingAdmissionPolicyBinding) {
	t.Helper()
	for _, doc := range documents(t, text) {
		for kind, into := range map[string]any{`"MutatingAdmissionPolicy"`: &p,
			`"MutatingAdmissionPolicyBinding"`: &b} {
			if !strings.Contains(doc, `"kind":`+kind) {
				continue
			}
			decoder := json.NewDecoder(strings.NewReader(doc))
			decoder.DisallowUnknownFields()
			if err := decoder.Decode(into); err != nil {
				t.Fatalf("%v: %s", err, doc)
			}
		}
	}
	if p.Name == "" || b.Spec.PolicyName != p.Name || len(p.Spec.Mutations) != 1 {
		t.Errorf("policy %+v, binding %+v", p, b)
	}
	return p, b
}

// TestPolicy checks that the shipped policy is the chart's policy for a configuration with one pool. If UPDATE is set,
// the test writes the file. In the scenario "scheduler" of sim/cluster, the API server uses this policy.
func TestPolicy(t *testing.T) {
	const file = "../kubernetes/addresses.yaml"
	_, text, _ := strings.Cut(rendered(t, "../kubernetes/values-addresses.yaml"), "---\n# Each pod")
	text = "# kubectl apply -f, when all nodes advertise their addresses: docs/scheduler.md. For several pools, use the " +
		"chart.\n---\n# Each pod" + text
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, file) != text {
		t.Errorf("%s is not the chart: run the test with UPDATE=1", file)
	}
	p, _ := policies(t, text)
	for _, v := range p.Spec.Variables {
		if v.Name == "pool" && v.Expression != `""` || v.Name == "number" && !strings.HasSuffix(v.Expression, ": 1") {
			t.Errorf("with one pool and without the capability of annotations, %s is %s", v.Name, v.Expression)
		}
	}
}

// TestPools checks the policy and the rule for several pools. As in the plugin, the most specific namespace decides.
func TestPools(t *testing.T) {
	text := rendered(t, valuesOf(t, `{scheduler: {policy: true, nodeFeatureRule: true, namespaceSelector: {matchLabels: {a: b}}},
		plugin: {capabilities: {"io.kubernetes.cri.pod-annotations": true}, pools: {
			batch: {namespaces: [batch, "job-*"]}, payments: {namespaces: ["job-pay*"]}, "no good": {namespaces: [x]}}}}`))
	p, b := policies(t, text)
	if b.Spec.MatchResources.NamespaceSelector.MatchLabels["a"] != "b" {
		t.Errorf("the binding: %+v", b)
	}
	got := map[string]string{}
	for _, v := range p.Spec.Variables {
		got[v.Name] = v.Expression
	}
	for name, want := range map[string]string{
		"pool": `"cni-ipvlan-vpc-k8s/pool" in variables.annotations ? variables.annotations["cni-ipvlan-vpc-k8s/pool"] : ` +
			`request.namespace.startsWith("job-pay") ? "payments" : request.namespace == "batch" ? "batch" : ` +
			`request.namespace.startsWith("job-") ? "batch" : request.namespace == "x" ? "no good" : ""`,
		"resource": `variables.pool in ["batch","payments"] ? "cni-ipvlan-vpc-k8s/addresses-" + variables.pool : ` +
			`"cni-ipvlan-vpc-k8s/addresses"`,
	} {
		if got[name] != want {
			t.Errorf("%s is\n%s\nwant\n%s", name, got[name], want)
		}
	}
	for _, want := range []string{`!(variables.pool in ["","default","batch","payments"]) ? 0 :`,
		`cni-ipvlan-vpc-k8s/addresses-payments: "@local.feature.cni-ipvlan-vpc-k8s.addresses-payments"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the objects do not have %s", want)
		}
	}
}

// objects returns the chart's objects, decoded into Kubernetes' own types. Unknown fields are errors.
func objects(t *testing.T, values string) (c core.ConfigMap, d apps.DaemonSet) {
	t.Helper()
	docs := documents(t, rendered(t, values))
	if len(docs) != 2 {
		t.Fatalf("%d objects", len(docs))
	}
	for i, into := range []any{&c, &d} {
		decoder := json.NewDecoder(strings.NewReader(docs[i]))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(into); err != nil {
			t.Fatalf("%v: %s", err, docs[i])
		}
	}
	if c.Kind != "ConfigMap" || d.Kind != "DaemonSet" || d.Spec.Template.Spec.Volumes[1].ConfigMap.Name != c.Name {
		t.Errorf("%s %s, %s %s", c.Kind, c.Name, d.Kind, d.Name)
	}
	for key, label := range d.Spec.Selector.MatchLabels {
		if d.Spec.Template.Labels[key] != label {
			t.Errorf("no pod of it has the label %s=%s", key, label)
		}
	}
	return c, d
}

// validate runs the tool's command validate for a conflist.
func validate(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	// The tool's command install makes the same replacement.
	installed := strings.Replace(text, `"hostInterface": "auto"`, `"hostInterface": "ens5"`, 1)
	if err := os.WriteFile(file, []byte(installed), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("../../bin/cni-ipvlan-vpc-k8s-tool", "validate", "--bin-dir=",
		file).CombinedOutput(); err != nil {
		t.Errorf("%v: %s\n%s", err, out, text)
	}
}

// TestChart checks the objects that the chart makes from different values.
func TestChart(t *testing.T) {
	for name, test := range map[string]struct {
		values     string
		args       []string // arguments of install
		containers []string
		keys       []string // texts that the conflist must contain
		not        string   // a text that the conflist must not contain
	}{
		"defaults": {
			"", []string{"install", "--root=/host", "--conflist=/config/10-cni-ipvlan-vpc-k8s.conflist",
				"--enable=cni-gc.timer", "--enable=cni-warm.path", "--systemd=auto"},
			[]string{"pause"}, []string{`"hostInterface": "auto"`, `"kubernetes_kubelet": "true"`, `"sg-5678"`,
				`"interfaceIndex": 1,`}, "portmap",
		},
		"keys": {
			`{plugin: {hostInterface: ens5, subnetTags: null, routeToVpcPeers: null, warm: {min: 4, max: 24}, interfaceIndex: 0, nodePortMark: 65536},
			  chained: [{type: portmap, capabilities: {portMappings: true}, markMasqBit: 12}], conflist: {file: 05-x.conflist, name: x}}`,
			[]string{"install", "--root=/host", "--conflist=/config/05-x.conflist", "--enable=cni-gc.timer",
				"--enable=cni-warm.path", "--systemd=auto"},
			[]string{"pause"}, []string{`"hostInterface": "ens5"`, `"min": 4`, `"portmap"`, `"nodePortMark": 65536`,
				`"name": "x"`}, "routeToVpcPeers",
		},
		"maintain": {
			`{systemd: "no", units: [], platform: talos, binDir: /b, confDir: /c, maintain: {enabled: true, every: ` +
				`1m, metrics: /m/x.prom, advertise: true, kubeconfig: /k}}`,
			[]string{"install", "--root=/host", "--conflist=/config/10-cni-ipvlan-vpc-k8s.conflist", "--enable=none",
				"--platform=talos",
				"--bin-dir=/b", "--conf-dir=/c", "--systemd=no"},
			[]string{"pause", "maintain --root=/host --every=1m --free-after=15m --config=/c --advertise " +
				"--node-name=$(NODE_NAME) --kubeconfig=/k --metrics=/m/x.prom"},
			nil, "portmap",
		},
		"uninstall": {
			`{uninstall: true, maintain: {enabled: true}}`, []string{"install", "--root=/host", "--uninstall",
				"--systemd=auto"}, []string{"pause"}, nil, "portmap",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, d := objects(t, valuesOf(t, test.values))
			pod := d.Spec.Template.Spec
			if init := pod.InitContainers; len(init) != 1 || !slices.Equal(init[0].Args, test.args) ||
				len(init[0].Command) > 0 {
				t.Errorf("init containers: %+v", init)
			}
			var containers []string
			for _, c := range pod.Containers {
				containers = append(containers,
					strings.Join(append([]string{c.Name}, c.Args[min(1, len(c.Args)):]...), " "))
			}
			if !slices.Equal(containers, test.containers) {
				t.Errorf("containers: %q", containers)
			}
			if !pod.HostNetwork || pod.PriorityClassName != "system-node-critical" ||
				pod.Tolerations[0].Operator != core.TolerationOpExists || pod.Tolerations[0].Key != "" {
				t.Errorf("the pod would not run on a node without a network: %+v", pod)
			}
			for file, text := range c.Data {
				validate(t, file, text)
				for _, key := range test.keys {
					if !strings.Contains(text, key) {
						t.Errorf("the conflist has no %s:\n%s", key, text)
					}
				}
				if strings.Contains(text, test.not) {
					t.Errorf("the conflist has %s:\n%s", test.not, text)
				}
			}
		})
	}
}

// TestEnvironment sets environment variables of both containers. The units must get the same variables.
func TestEnvironment(t *testing.T) {
	_, d := objects(t,
		valuesOf(t, `{maintain: {enabled: true}, env: [{name: AWS_USE_FIPS_ENDPOINT, value: "true"}, {name: AWS_CA_BUNDLE, value: /etc/ssl/company.pem},
		{name: HTTPS_PROXY, valueFrom: {secretKeyRef: {name: proxy, key: url}}}]}`))
	pod := d.Spec.Template.Spec
	install, pause, maintain := pod.InitContainers[0], pod.Containers[0], pod.Containers[1]
	for _, c := range []core.Container{install, maintain} {
		if e := c.Env; len(e) != 3 || e[0] != (core.EnvVar{Name: "AWS_USE_FIPS_ENDPOINT", Value: "true"}) ||
			e[1].Value != "/etc/ssl/company.pem" ||
			e[2].ValueFrom == nil || e[2].ValueFrom.SecretKeyRef.Name != "proxy" {
			t.Errorf("%s has the environment %+v", c.Name, e)
		}
	}
	if got := strings.Join(install.Args, " "); !strings.HasSuffix(got,
		" --env=AWS_USE_FIPS_ENDPOINT --env=AWS_CA_BUNDLE --env=HTTPS_PROXY") ||
		strings.Contains(strings.Join(maintain.Args, " "), "--env") {
		t.Errorf("install has the arguments %s", got)
	}
	_, d = objects(t, valuesOf(t, `{maintain: {enabled: true, advertise: true}, env: [{name: HTTPS_PROXY, value: x}]}`))
	e := d.Spec.Template.Spec.Containers[1].Env
	if len(e) != 2 || e[0].Name != "NODE_NAME" || e[0].ValueFrom.FieldRef.FieldPath != "spec.nodeName" ||
		e[1].Value != "x" {
		t.Errorf("with advertise, maintain has the environment %+v", e)
	}
	if len(pause.Env) > 0 {
		t.Errorf("pause has the environment %+v", pause.Env)
	}
}

// TestNewConflistMakesNewPods checks that the pods get another annotation if the conflist changes, and the same
// annotation if the conflist does not change.
func TestNewConflistMakesNewPods(t *testing.T) {
	sum := func(values string) string {
		_, d := objects(t, valuesOf(t, values))
		return d.Spec.Template.Annotations["checksum/conflist"]
	}
	if one, two := sum(`{plugin: {mtu: 1500}}`), sum(`{plugin: {mtu: 9001}}`); one == two ||
		one != sum(`{plugin: {mtu: 1500}, maxUnavailable: 1}`) {
		t.Error(one, two)
	}
}

// TestBadValues checks that the error names the bad value.
func TestBadValues(t *testing.T) {
	for want, values := range map[string]string{
		"image.repository must be set": `{image: {repository: ""}}`,
		"image.tag must be set":        `{image: {repository: r, tag: ""}}`,
		"plugins":                      `{plugins: {}}`,
		"enable":                       `{maintain: {enable: true}}`,
		"systemd":                      `{systemd: maybe}`,
	} {
		if _, err := render("../chart", release, namespace, valuesOf(t, values)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", values, err, want)
		}
	}
}

// conflists returns the conflists that a text contains.
func conflists(text string) (all []string) {
	for {
		at := strings.Index(text, `"cniVersion"`)
		if at < 0 {
			return all
		}
		start := strings.LastIndex(text[:at], "{")
		var list json.RawMessage
		if start >= 0 && json.NewDecoder(strings.NewReader(text[start:])).Decode(&list) == nil &&
			bytes.Contains(list, []byte(`"plugins"`)) {
			all = append(all, string(list))
			at = start + len(list)
		}
		text = text[at+1:]
	}
}
