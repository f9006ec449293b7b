// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam_test

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/invoke"
	"go.opentelemetry.io/otel/trace"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// TestTraced: a runtime calls the plugin within a trace. The lease log and the error have the ID of this trace. The
// log's lines about a call outside a trace have no ID.
func TestTraced(t *testing.T) {
	n := newNode(t, "m5.large", ec2sim.Config{}, nil)
	log := filepath.Join(t.TempDir(), "leases.log")
	n.conf["leaseLog"] = map[string]string{"file": log}
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{7, 1}, SpanID: trace.SpanID{2},
		TraceFlags: trace.FlagsSampled})
	add := func(pod string) error {
		cmd := n.cni("ADD", pod, nil)
		config, err := io.ReadAll(cmd.Stdin)
		must(t, err)
		return n.Host.Do(func() error {
			_, err := new(invoke.RawExec).ExecPlugin(trace.ContextWithSpanContext(t.Context(), span), cmd.Path, config,
				cmd.Env)
			return err
		})
	}
	n.add("untraced")
	must(t, add("traced"))
	const id = "07010000000000000000000000000000"
	text, err := os.ReadFile(log)
	must(t, err)
	traced := 0
	for line := range strings.Lines(string(text)) {
		var l registry.Line
		must(t, json.Unmarshal([]byte(line), &l))
		want := ""
		if l.Container == "traced" {
			want = id
			traced++
		}
		if l.Trace != want {
			t.Errorf("want the trace %q: %s", want, line)
		}
	}
	if traced != 1 {
		t.Errorf("the lease of the pod has %d lines", traced)
	}
	n.conf["maxENIs"] = -1
	if err := add("refused"); err == nil || !strings.HasSuffix(err.Error(), "; trace "+id) {
		t.Errorf("the error is %v", err)
	}
}
