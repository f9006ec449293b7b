// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

func TestParseArgs(t *testing.T) {
	for args, want := range map[string]Pod{
		"": {},
		"IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_INFRA_CONTAINER_ID=c;K8S_POD_UID=u": {
			"shop", "cart-0", "u"},
		"K8S_POD_NAME=a=b;;K8S_POD_NAMESPACE":        {Name: "a=b"},
		`NICs=[{"ip":"10.0.0.1"}];K8S_POD_NAME=p;`:   {Name: "p"},
		"k8s_pod_name=small;K8S_POD_NAMES=more;=;==": {},
	} {
		if got := parseArgs(args); got != want {
			t.Errorf("%q: got %+v, want %+v", args, got, want)
		}
	}
}

// FuzzParseArgs checks that the parsed values are parts of the text.
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

// TestNamesOfPods: ADD refuses names that a Kubernetes pod cannot have, with a short error. DEL accepts them.
func TestNamesOfPods(t *testing.T) {
	for name, good := range map[string]bool{
		"": true, "cart-0": true, "web.7": true, strings.Repeat("a", 253): true,
		strings.Repeat("a", 254): false, strings.Repeat("a", 100000): false, "a\x1b[2J": false, "a\u202eb": false,
		"a/b": false, "a\nb": false,
	} {
		for _, key := range []string{"K8S_POD_NAME", "K8S_POD_NAMESPACE", "K8S_POD_UID"} {
			for _, verb := range []string{"ADD", "DEL"} {
				env := map[string]string{"CNI_COMMAND": verb, "CNI_CONTAINERID": "c", "CNI_NETNS": "/run/netns/none",
					"CNI_IFNAME": "eth0", "CNI_PATH": "/opt", "CNI_ARGS": key + "=" + name}
				e := execution[struct{}]{commands: Commands[struct{}]{
					Add: func(context.Context, *Request[struct{}]) (*types100.Result,
						error) {
						return &types100.Result{}, nil
					},
					Del: func(context.Context, *Request[struct{}]) error { return nil },
				}}
				err := e.run(func(k string) string {
					return env[k]
				}, strings.NewReader(`{"cniVersion":"1.0.0","name":"n","type":"t"}`), io.Discard)
				if want := good || verb == "DEL"; (err == nil) != want || err != nil &&
					(len(err.Msg) > 300 || strings.ContainsAny(err.Msg, "\x1b\u202e\n")) {
					t.Errorf("%s with %s=%.60q: %v", verb, key, name, err)
				}
			}
		}
	}
}

// TestNullInPrevResult: a list in prevResult contains null. DEL continues, and CHECK fails with an error. The CNI
// library alone would panic, or leave nil in the list.
func TestNullInPrevResult(t *testing.T) {
	for _, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
		for _, list := range []string{"ips", "interfaces", "routes"} {
			for command, want := range map[string]uint{"DEL": 0, "CHECK": CodeDecode} {
				in := fmt.Sprintf(`{"cniVersion":%q,"name":"n","type":"t","prevResult":{"cniVersion":%[1]q,%q:[null]}}`,
					version, list)
				env := map[string]string{"CNI_COMMAND": command, "CNI_CONTAINERID": "c", "CNI_NETNS": "/run/netns/none",
					"CNI_IFNAME": "eth0", "CNI_PATH": "/opt"}
				use := func(_ context.Context, r *Request[struct{}]) error {
					if r.Prev != nil { // the plugins also call NICs
						NICs(r.Prev, r.IfName)
						Several(r.Prev)
					}
					return nil
				}
				e := execution[struct{}]{commands: Commands[struct{}]{Del: use, Check: use}}
				err := e.run(func(k string) string { return env[k] }, strings.NewReader(in), io.Discard)
				if got := codeOf(err); got != want {
					t.Errorf("%s, %s of %s: %v, want %d", command, list, version, err, want)
				}
			}
		}
	}
}

// codeOf returns the code of an error that a plugin prints; 0: there is no error.
func codeOf(err *types.Error) uint {
	if err == nil {
		return 0
	}
	return err.Code
}
