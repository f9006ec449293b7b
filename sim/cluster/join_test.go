// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/api"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

// preProvisioned checks a node that gets its ENIs and addresses from a launch template. Pods on this node run without a
// change in EC2.
func (w *world) preProvisioned(t *testing.T) {
	const config = "/run/template.conflist"
	check(t, w.Nodes[0].WriteFile(config, edited(t, "pre-provisioned",
		object{"secGroupIds": []string{"sg-1234"}}), 0o644))
	out, err := w.Nodes[0].Run(t.Context(), tool, "launch-template", "--config="+config, "--instance-type=m5.large",
		"--subnet=subnet-pods1", "--addresses=1")
	check(t, err)
	// Remove the file. Otherwise, the validation of a later conflist in the same directory would find two networks of
	// one name.
	check(t, os.Remove(w.Nodes[0].File(config)))
	// The key routeToCidrs has the peer's CIDR, so the pods reach the peer.
	o := cluster.NodeOptions{Type: "m5.large",
		Conflist: edited(t, "pre-provisioned", object{"routeToCidrs": []string{"10.1.0.0/16"}})}
	check(t, json.Unmarshal([]byte(out), &o.Template))
	before := len(w.changes())
	n := w.join(t, "provisioned", o)
	spec := server()
	spec["nodeName"] = n.Name
	w.apply(t, deployment("web", 4, spec), podOn("client", n.Name,
		object{"hostNetwork": true, "containers": server()["containers"]}))
	client := w.ready(t, "client", 1)[0]
	for _, p := range w.ready(t, "web", 4) { // two ENIs with two addresses each
		seesHost(t, w.Peer.NS, serverOf(p), w.Peer.Addr())
		w.sees(t, client, "http", serverOf(p), client.addr)
		w.sees(t, p, "http", serverOf(client), p.addr)
	}
	if c := w.changes()[before:]; len(c) > 0 {
		t.Errorf("calls of a node that may change nothing in EC2: %q", c)
	}
}

// changes returns the calls that change something in EC2.
func (w *world) changes() (all []string) {
	for _, c := range w.Fabric.EC2.Calls() {
		if api.Changes(c.Action) {
			all = append(all, c.String())
		}
	}
	return all
}
