// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"strings"
	"testing"
)

func TestParseArgs(t *testing.T) {
	for args, want := range map[string]Pod{
		"": {},
		"IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_INFRA_CONTAINER_ID=c;K8S_POD_UID=u": {"shop", "cart-0", "u"},
		"K8S_POD_NAME=a=b;;K8S_POD_NAMESPACE":        {Name: "a=b"},
		`NICs=[{"ip":"10.0.0.1"}];K8S_POD_NAME=p;`:   {Name: "p"},
		"k8s_pod_name=small;K8S_POD_NAMES=more;=;==": {},
	} {
		if got := parseArgs(args); got != want {
			t.Errorf("%q: got %+v, want %+v", args, got, want)
		}
	}
}

// FuzzParseArgs wants what is read to be in the text.
func FuzzParseArgs(f *testing.F) {
	f.Add("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_UID=a=b;")
	f.Add(";;=;K8S_POD_NAME;K8S_POD_NAME==")
	f.Fuzz(func(t *testing.T, args string) {
		p := parseArgs(args)
		for _, part := range []string{p.Namespace, p.Name, p.UID} {
			if !strings.Contains(args, part) || strings.Contains(part, ";") {
				t.Errorf("%q: %+v", args, p)
			}
		}
	})
}
