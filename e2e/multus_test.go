// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/judge"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// An apiServer answers the requests of Multus to the API server: for the pod, and for the networks in the pod's
// namespace.
type apiServer struct {
	networks map[string]string // configurations of the NetworkAttachmentDefinitions, by name
	asks     string            // the annotation in which the pod asks for networks
	gone     atomic.Bool       // the pod is deleted
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	meta := map[string]any{"namespace": "vm-1", "name": path.Base(r.URL.Path)}
	switch kind := path.Base(path.Dir(r.URL.Path)); {
	case kind == "pods" && a.gone.Load():
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure",
			"reason": "NotFound", "code": 404})
	case kind == "network-attachment-definitions":
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "NetworkAttachmentDefinition",
			"apiVersion": "k8s.cni.cncf.io/v1", "metadata": meta,
			"spec": map[string]string{"config": a.networks[path.Base(r.URL.Path)]}})
	default: // the pod, its status, or an event
		meta["name"], meta["annotations"] = "pod", map[string]string{"k8s.v1.cni.cncf.io/networks": a.asks}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Pod", "apiVersion": "v1", "metadata": meta})
	}
}

func (a *apiServer) serve(t *testing.T, node *vpcsim.Instance) (kubeconfig string) {
	t.Helper()
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "c", "cluster": {"server": %q}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}]}`,
		simtest.ServeIn(t, node.NS, "127.0.0.1:0", a))
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// TestMultus: Multus calls the plugins for one, two and three networks of a pod, and each interface must answer. The
// verbs must succeed in the order in which Multus calls them. Multus calls CHECK and STATUS for the first network, and
// GC with the attachments in its cache. It calls DEL for all networks, even if the pod is already deleted, and calls
// DEL a second time.
func TestMultus(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables")
	multus, err := filepath.Abs(".cache/cri/multus")
	if err == nil {
		_, err = os.Stat(multus)
	}
	if err != nil {
		t.Fatalf("%v: make test builds it", err)
	}
	pkg, version := judge.Release(t, multus)
	judge.Attr(t, "`"+pkg+"` calls ours for one to three networks", version, "`dataPath` `ipvlan`")
	text, err := os.ReadFile("conflist-examples/requests.conflist")
	if err != nil {
		t.Fatal(err)
	}
	network := func(name string) string {
		changed := strings.Replace(string(text), `"name": "cni-ipvlan-vpc-k8s"`, fmt.Sprintf(`"name": %q`, name), 1)
		changed = strings.Replace(changed, `"capabilities": {`, `"reuseIPWait": 0, "capabilities": {"ips": true, `, 1)
		return strings.Replace(changed, `"cniVersion": "1.0.0"`, `"cniVersion": "1.1.0"`, 1)
	}
	v := exampleVPC(t)
	for i, asks := range []string{
		`[]`,
		`[{"name": "given", "interface": "net1", "cni-args": {"eni": %q}}]`,
		`[{"name": "given", "interface": "net1", "cni-args": {"eni": %q}}, {"name": "chosen", "interface": "net2", ` +
			`"ips": ["100.64.0.90"]}]`,
		`[{"name": "given", "interface": "net1", "cni-args": {"eni": %q, "exclusive": true}}]`,
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			w := v.launch(t, example{kubernetes: "vm-1"})
			given := w.give(t)
			api := &apiServer{networks: map[string]string{"given": network("given"),
				"chosen": network("chosen")}, asks: asks}
			if strings.Contains(asks, "%q") {
				api.asks = fmt.Sprintf(asks, given)
			}
			list := w.multus(t, multus, api.serve(t, w.node), network("cni-ipvlan-vpc-k8s"))
			w.verb(t, list, "STATUS", "pod")
			w.verb(t, list, "ADD", "pod")
			w.verb(t, list, "CHECK", "pod")
			w.verb(t, list, "GC", "pod")
			links := []string{"eth0", "net1", "net2"}[:1+strings.Count(asks, "name")]
			for _, link := range links {
				a := w.addressOf(t, link)
				w.called(t, a, link == "eth0")
				if link == "net2" && a != netip.MustParseAddr("100.64.0.90") {
					t.Errorf("net2 has %s", a)
				}
			}
			api.gone.Store(i%2 == 1)
			w.verb(t, list, "DEL", "pod")
			w.verb(t, list, "DEL", "pod")
			for _, link := range links {
				if _, err := w.pods["pod"].LinkByName(link); err == nil {
					t.Errorf("the pod still has %s", link)
				}
			}
			if left := w.tool(t, "status", "--output=json"); strings.Contains(left, `"state": "bound"`) ||
				strings.Contains(left, `"state": "reserved"`) {
				t.Errorf("leases are left:\n%s", left)
			}
		})
	}
}

// multus returns the configuration of Multus. The pod's first network is the argument first. multus also puts Multus'
// program into the directory of the plugins.
func (w *world) multus(t *testing.T, program, kubeconfig, first string) *libcni.NetworkConfigList {
	t.Helper()
	dir := t.TempDir()
	files, err := os.ReadDir(w.path)
	for _, f := range files {
		if err == nil {
			err = os.Symlink(filepath.Join(w.path, f.Name()), filepath.Join(dir, f.Name()))
		}
	}
	if err == nil {
		err = os.Symlink(program, filepath.Join(dir, "multus"))
	}
	if err != nil {
		t.Fatal(err)
	}
	w.path = dir
	list, err := libcni.ConfListFromBytes([]byte(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "multus-cni-network", "plugins": [{"type": "multus",
		"kubeconfig": %q, "cniDir": %q, "binDir": %q, "delegates": [%s]}]}`, kubeconfig, t.TempDir(), dir, first)))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func (w *world) addressOf(t *testing.T, link string) netip.Addr {
	t.Helper()
	addrs, err := w.pods["pod"].Addrs(link)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if a.Prefix.Addr().Is4() {
			return a.Prefix.Addr()
		}
	}
	t.Fatalf("%s has no address", link)
	return netip.Addr{}
}
