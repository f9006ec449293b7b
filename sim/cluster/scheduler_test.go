// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

var rounds = flag.Int("rounds", 20, "`number` of rounds of the scenario scheduler, without the resource and with it")

const (
	burst     = 30                                          // pods of a round
	fewest    = 3                                           // addresses of the smaller node
	addresses = "../../packaging/kubernetes/addresses.yaml" // the policy
)

// cooling is how long an address cools on the nodes of this test. cycle is the time between two runs of cni-tool
// advertise on a node. On a real node, this time is a minute.
const (
	cooling = 10 * time.Second
	cycle   = 5 * time.Second
)

// scheduler starts pods on two nodes. The node "few" can have 3 addresses for pods, and the node "many" can have 40.
// Each kubelet accepts 110 pods. Without the resource "addresses" of the nodes, the scheduler places half of the pods
// on the node "few", where most of these pods wait. With the resource, no ADD may fail for lack of an address.
func (w *world) scheduler(t *testing.T) {
	few, many := w.sized(t, "few", "t9.three"), w.sized(t, "many", "t9.forty")
	without := w.play(t, "without", func(n int) round {
		r := w.placed(t, fmt.Sprint("without-", n))
		time.Sleep(cooling + cycle) // the next round finds all addresses usable
		return r
	})
	if without.failed == 0 {
		t.Error("without the resource no pod has failed for lack of an address: this shows nothing")
	}
	w.advertising(t, few, many)
	manifest := "/run/addresses.yaml"
	check(t, w.Master.WriteFile(manifest, must(os.ReadFile(addresses)), 0o644))
	w.kubectl(t, "apply", "--validate=ignore", "-f", manifest)
	t.Cleanup(func() {
		_, err := w.Kubectl(context.Background(), "delete", "--ignore-not-found", "-f", manifest)
		check(t, err)
	})
	w.asks(t)
	with := w.play(t, "with", func(n int) round {
		r := w.placed(t, fmt.Sprint("with-", n))
		for _, node := range []*cluster.Node{few, many} { // as the timer does before the next pods
			await(t, func() error { return advertise(t.Context(), node) })
		}
		return r
	})
	if with.failed > 0 {
		t.Errorf("with the resource, %d pods have failed for lack of an address", with.failed)
	}
	w.figures = append(w.figures, without.String(), with.String())
}

// sized adds a node of an instance type. Its kubelet's credentials are where cni-tool looks for them.
func (w *world) sized(t *testing.T, name, instanceType string) *cluster.Node {
	t.Helper()
	config, err := w.KubeletConfig(name)
	check(t, err)
	n := w.join(t, name, cluster.NodeOptions{Type: instanceType, MaxPods: 110,
		Conflist: edited(t, "10-cni-ipvlan-vpc-k8s", object{"reuseIPWait": int(cooling.Seconds())})})
	text, err := os.ReadFile(n.File(config))
	check(t, err)
	check(t, n.WriteFile("/var/lib/kubelet/kubeconfig", text, 0o600))
	w.kubectl(t, "label", "node", name, "rounds=here")
	return n
}

// advertise runs cni-tool advertise on a node. Without flags, the command finds the name of the node and the kubeconfig
// itself.
func advertise(ctx context.Context, n *cluster.Node, flags ...string) error {
	_, err := n.Run(ctx, tool, append([]string{"advertise", fmt.Sprint("--window=", cooling)}, flags...)...)
	return err
}

// advertising makes the nodes advertise their addresses until the end of the test. It also checks that a node cannot
// advertise for another node.
func (w *world) advertising(t *testing.T, nodes ...*cluster.Node) {
	t.Helper()
	if err := advertise(t.Context(), nodes[0], "--node-name="+nodes[1].Name); err == nil ||
		!strings.Contains(err.Error(), "403 Forbidden") {
		t.Errorf("%s advertises for %s: %v", nodes[0].Name, nodes[1].Name, err)
	}
	for i, want := range []string{"3", "40"} {
		check(t, advertise(t.Context(), nodes[i]))
		await(t, func() error {
			got, err := w.Kubectl(t.Context(), "get", "node", nodes[i].Name, "-o",
				`jsonpath={.status.allocatable.cni-ipvlan-vpc-k8s/addresses}`)
			if err == nil && got != want {
				err = fmt.Errorf("%s has %q addresses for pods, want %s", nodes[i].Name, got, want)
			}
			return err
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, n := range nodes {
		running.Go(func() {
			for ctx.Err() == nil {
				if err := advertise(ctx, n); err != nil && ctx.Err() == nil {
					t.Log(err) // the API server may be busy; the node keeps its number until the next run
				}
				select {
				case <-ctx.Done():
				case <-time.After(cycle):
				}
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// asks waits until new pods ask for the resource. It also checks that pods on the host network do not ask for it.
func (w *world) asks(t *testing.T) {
	t.Helper()
	asked := func(name string, spec object) string {
		w.remove(t, "pod", name)
		spec["nodeSelector"] = object{"rounds": "nowhere"}
		check(t, w.Apply(t.Context(), string(must(json.Marshal(object{"apiVersion": "v1", "kind": "Pod",
			"metadata": meta(name), "spec": spec})))))
		defer w.remove(t, "pod", name)
		out, err := w.Kubectl(t.Context(), "get", "pod", name, "-o",
			`jsonpath={.spec.containers[*].resources.requests}{.spec.containers[*].resources.limits}`)
		check(t, err)
		return out
	}
	await(t, func() error {
		const want = `{"cni-ipvlan-vpc-k8s/addresses":"1"}`
		if got := asked("asks", pausing()); got != want+want {
			return fmt.Errorf("a pod asks for %s, want %s", got, want+want)
		}
		return nil
	})
	host := pausing()
	host["hostNetwork"] = true
	if got := asked("asks-not", host); got != "" {
		t.Errorf("a pod on the host network asks for %s", got)
	}
}

func pausing() object {
	return podSpec(object{"name": "pause", "image": cluster.Pause, "imagePullPolicy": "Never"})
}

// A round has the numbers of pods that the scheduler has placed on each node. failed is the number of pods whose
// sandbox could not be created, because the node had no address.
type round struct {
	name              string
	few, many, failed int
	rounds            int
	took              time.Duration // until all pods with addresses run; of several rounds, the longest time
}

func (r round) String() string {
	return fmt.Sprintf("scheduler: %d rounds of %d pods %-7s the resource: %3d placed on the node with %d addresses, "+
		"%3d on that with 40; FailedCreatePodSandBox for lack of an address: %d pods; a round took at most %.0f s",
		r.rounds, burst, r.name, r.few, fewest, r.many, r.failed, r.took.Seconds())
}

// play plays several rounds, and adds their results.
func (w *world) play(t *testing.T, name string, play func(n int) round) round {
	t.Helper()
	all := round{name: name, rounds: *rounds}
	for n := range *rounds {
		r := play(n)
		all.few, all.many, all.failed, all.took = all.few+r.few, all.many+r.many, all.failed+r.failed,
			max(all.took, r.took)
		t.Logf("round %d %s: %d on few, %d on many, %d failed, after %v", n+1, name, r.few, r.many, r.failed, r.took)
	}
	return all
}

// placed starts a burst of pods. It waits until each pod either runs, or has failed for lack of an address. Then it
// deletes all pods.
func (w *world) placed(t *testing.T, name string) (r round) {
	t.Helper()
	spec := pausing()
	spec["nodeSelector"] = object{"rounds": "here"}
	began := time.Now()
	check(t, w.Apply(t.Context(), string(must(json.Marshal(deployment(name, burst, spec))))))
	defer w.remove(t, "deployment", name)
	await(t, func() (err error) {
		placed := map[string]int{}
		out, err := w.Kubectl(t.Context(), "get", "pods", "-l", "app="+name, "-o",
			`jsonpath={range .items[*]}{.spec.nodeName}{"\n"}{end}`)
		if err != nil {
			return err
		}
		for _, node := range strings.Fields(out) {
			placed[node]++
		}
		r.few, r.many = placed["few"], placed["many"]
		running, err := w.pods(t.Context(), name)
		if err != nil {
			return err
		}
		if r.failed, err = w.lacking(t.Context(), name); err != nil {
			return err
		}
		if r.few+r.many < burst || len(running) < r.many+min(r.few, fewest) || r.failed < r.few-fewest {
			return fmt.Errorf("%s: %d on few, %d on many, %d run, %d have failed", name, r.few, r.many, len(running),
				r.failed)
		}
		return nil
	})
	r.took = time.Since(began)
	return r
}

// lacking counts the pods whose sandbox could not be created because the node had no address.
func (w *world) lacking(ctx context.Context, name string) (int, error) {
	out, err := w.Kubectl(ctx, "get", "events", "--field-selector=reason=FailedCreatePodSandBox", "-o", "json")
	if err != nil {
		return 0, err
	}
	var events struct {
		Items []struct {
			InvolvedObject struct{ Name string }
			Message        string
		}
	}
	if err := json.Unmarshal([]byte(out), &events); err != nil {
		return 0, err
	}
	pods := map[string]bool{}
	for _, e := range events.Items {
		if strings.HasPrefix(e.InvolvedObject.Name, name+"-") && strings.Contains(e.Message, "no address is free") {
			pods[e.InvolvedObject.Name] = true
		}
	}
	return len(pods), nil
}
