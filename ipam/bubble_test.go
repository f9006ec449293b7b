// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
)

// inBubble calls f with a world in a synctest bubble, where sleeping takes no time. A wait for a lock is a wait in the
// kernel, and stops the time of the bubble. So only one goroutine at a time may wait for a lock.
func inBubble(t *testing.T, instanceType string, f func(*world, *wires)) {
	t.Helper()
	inSlowBubble(t, instanceType, 0, f)
}

// inSlowBubble is inBubble with a slow EC2. The argument detach is the time that EC2 takes to detach an ENI.
func inSlowBubble(t *testing.T, instanceType string, detach time.Duration, f func(*world, *wires)) {
	t.Helper()
	inBubbleOf(t, instanceType, func(c *ec2sim.Config) { c.DetachDelay = detach }, f)
}

// inUntaggedBubble calls f in two bubbles. In one of them, the role of the instance may create tags, and in the other
// it may not.
func inUntaggedBubble(t *testing.T, instanceType string, f func(*world, *wires)) {
	t.Helper()
	for name, denied := range map[string][]string{"tags": nil, "no tags": {"CreateTags"}} {
		t.Run(name, func(t *testing.T) {
			inBubbleOf(t, instanceType, func(c *ec2sim.Config) { c.Denied = denied }, f)
		})
	}
}

// inBubbleOf is inBubble with another configuration of the simulated EC2. The function differ changes this
// configuration.
func inBubbleOf(t *testing.T, instanceType string, differ func(*ec2sim.Config), f func(*world, *wires)) {
	t.Helper()
	simtest.Credentials(t)
	n := simtest.NewNode(t)
	synctest.Test(t, func(t *testing.T) {
		config := ec2sim.World(`
			vpc-1       10.177.0.0/16
			subnet-node 10.177.0.0/24
			subnet-pod0 10.177.16.0/20 kubernetes_kubelet=true for=pods`)
		differ(&config)
		w := worldOf(t, n, config, ec2sim.RunInstance{Type: instanceType, Subnet: "subnet-node"})
		wires := &wires{Node: w.Node}
		w.cloud = aws.Options{EC2URL: "http://ec2", MetadataURL: "http://imds", HTTP: wires}
		f(w, wires)
	})
}

// wires carries requests to EC2 and to the metadata service, and counts the requests to the metadata service. It can
// also make EC2 hide an ENI or repeat an old answer.
type wires struct {
	*simtest.Node
	metadata http.Handler // replaces the node's metadata service; nil: no replacement
	hidden   atomic.Value // the ID of an ENI that EC2's describes do not show; empty: none
	by       string       // the filter of the describes that do not show the hidden ENI; empty: no describe shows it
	lags     atomic.Bool  // EC2 repeats its last answer about the ENIs of the instance
	last     string       // EC2's last answer about the ENIs of the instance
	asked    atomic.Int64
}

func (w *wires) Do(r *http.Request) (*http.Response, error) {
	if r.URL.Host != "imds" {
		return ec2sim.Direct{Handler: http.HandlerFunc(w.ec2)}.Do(r)
	}
	w.asked.Add(1)
	const patience = 500 * time.Millisecond // less than that of aws.directHTTP
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	if w.metadata != nil {
		return ec2sim.Direct{Handler: w.metadata}.Do(r.WithContext(ctx))
	}
	return ec2sim.Direct{Handler: w.Metadata()}.Do(r.WithContext(ctx))
}

// ec2 answers as the simulated EC2, but hides an ENI, or repeats an old answer, if the fields of w say so.
func (w *wires) ec2(rw http.ResponseWriter, r *http.Request) {
	shown := httptest.NewRecorder()
	w.EC2.ServeHTTP(shown, r)
	text := shown.Body.String()
	hidden, _ := w.hidden.Load().(string)
	if hidden != "" && r.FormValue("Action") == "DescribeNetworkInterfaces" && strings.Contains(text, hidden) &&
		(w.by == "" || w.by == r.FormValue("Filter.1.Name")) {
		text = `<DescribeNetworkInterfacesResponse><networkInterfaceSet/></DescribeNetworkInterfacesResponse>`
	}
	if r.FormValue("Action") == "DescribeNetworkInterfaces" &&
		r.FormValue("Filter.1.Name") == "attachment.instance-id" {
		if w.lags.Load() {
			text = w.last
		}
		w.last = text
	}
	maps.Copy(rw.Header(), shown.Header())
	rw.WriteHeader(shown.Code)
	io.WriteString(rw, text)
}
