// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package manifest

import (
	"bytes"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/policy"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	policyvalidation "k8s.io/kubernetes/pkg/apis/policy/validation"
)

// root is the repository's root.
const root = "../../../.."

// TestEgress decodes the output of cni-tool egress --manifest. Like a strict API server, it refuses unknown and double
// fields. It also sets the defaults, and validates the objects.
func TestEgress(t *testing.T) {
	added := []string{"--manifest", "dual", "--gateways", "fd00:20::78,172.20.0.78", "--destinations", "198.51.100.0/24",
		"--namespaces", "shop", "--clients", "2600:1f18::/56"}
	for name, c := range map[string]struct {
		args  []string
		kinds string
	}{
		"configured": {[]string{"--manifest", "partner"}, "Namespace Service PodDisruptionBudget Deployment"},
		"five that probe": {[]string{"--manifest", "partner", "--replicas", "5", "--probe", "https://partner/?a=\"b: #c",
			"--image", "example.com/curl@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"},
			"Namespace Service PodDisruptionBudget Deployment"},
		"chosen addresses": {[]string{"--manifest", "partner", "--address", "10.0.9.10@us-east-1a", "--address",
			"2600:1f18::"}, "Namespace Service PodDisruptionBudget StatefulSet StatefulSet"},
		"new, of both families": {added, "Namespace Service PodDisruptionBudget Deployment"},
		"words that YAML knows": {slices.Concat([]string{"--manifest", "on", "--routers", "null"}, added[2:]),
			"Namespace Service PodDisruptionBudget Deployment"},
	} {
		t.Run(name, func(t *testing.T) {
			var kinds []string
			for _, text := range bytes.Split(printed(t, c.args), []byte("\n---\n")) {
				kinds = append(kinds, valid(t, text))
			}
			if got := strings.Join(kinds, " "); got != c.kinds {
				t.Errorf("got %s, want %s", got, c.kinds)
			}
		})
	}
	if _, err := decode([]byte("apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterip: x}")); err == nil {
		t.Error("a field that no Service has is accepted")
	}
}

// printed returns the output of the tool, which make builds before the test.
func printed(t *testing.T, args []string) []byte {
	t.Helper()
	c := exec.Command(root+"/bin/cni-ipvlan-vpc-k8s-tool", append([]string{"egress", "--config",
		root + "/conflist-examples/egress.conflist"}, args...)...)
	var wrong bytes.Buffer
	c.Stderr = &wrong
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, wrong.Bytes())
	}
	return out
}

// decode reads an object of any version, sets its defaults, and converts it to the internal version.
func decode(text []byte) (runtime.Object, error) {
	strict := serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict).UniversalDecoder()
	return runtime.Decode(strict, text)
}

// valid checks that an object has no mistake, and returns its kind.
func valid(t *testing.T, text []byte) string {
	t.Helper()
	o, err := decode(text)
	if err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	var wrong field.ErrorList
	kind := fmt.Sprintf("%T", o)
	switch o := o.(type) {
	case *core.Namespace:
		wrong = validation.ValidateNamespace(o)
	case *core.Service:
		wrong = validation.ValidateServiceCreate(o)
	case *policy.PodDisruptionBudget:
		wrong = policyvalidation.ValidatePodDisruptionBudget(o, policyvalidation.PodDisruptionBudgetValidationOptions{})
	case *apps.Deployment:
		wrong = appsvalidation.ValidateDeployment(o, pod.GetValidationOptionsFromPodTemplate(&o.Spec.Template, nil))
	case *apps.StatefulSet:
		wrong = appsvalidation.ValidateStatefulSet(o, appsvalidation.StatefulSetValidationOptions{},
			pod.GetValidationOptionsFromPodTemplate(&o.Spec.Template, nil))
	default:
		t.Fatalf("%s is none of the objects that an egress needs", kind)
	}
	if len(wrong) > 0 {
		t.Errorf("%s: %v", kind, wrong.ToAggregate())
	}
	return kind[strings.LastIndex(kind, ".")+1:]
}
