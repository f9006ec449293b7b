// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// With the flag churn, TestStatusBeside runs longer: for ten minutes and at least 1,000 pods, with a STATUS twice a
// second:
//
//	go test -timeout 1h -exec "$PWD/nl/nltest/vm/exec" -run TestStatusBeside -v ./e2e -args -churn
var churn = flag.Bool("churn", false, "TestStatusBeside: add and delete pods for ten minutes")

// TestStatusBeside runs STATUS again and again. At the same time, pods are added and deleted, collections release
// addresses, and ADDs get new addresses from EC2. No STATUS may fail, because a runtime would make the node NotReady.
func TestStatusBeside(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables")
	const workers, collect = 4, 10
	pods, statuses, pause := int64(100), int64(1), time.Duration(0)
	if *churn {
		pods, statuses, pause = 1000, 1200, time.Second/2
	}
	for _, path := range []string{"ipvlan", "veth"} {
		t.Run(path, func(t *testing.T) {
			w := exampleVPC(t).launch(t, example{})
			list := must(libcni.ConfListFromBytes(must(mode{change: func(ipam, _ map[string]any) {
				ipam["dataPath"], ipam["reuseIPWait"] = path, 0
			}, Options: v4}.conflist())))
			for n := range workers {
				w.pod(t, fmt.Sprint("pod", n))
			}
			var added, asked atomic.Int64
			var wg sync.WaitGroup
			for n := range workers {
				wg.Go(func() {
					for !t.Failed() && (added.Load() < pods || asked.Load() < statuses) {
						w.live(t, list, fmt.Sprint("pod", n))
						if added.Add(1)%collect == 0 {
							w.tool(t, "registry-gc", "--free-after=1ns")
						}
					}
				})
			}
			ended := make(chan struct{})
			go func() { wg.Wait(); close(ended) }()
			for open := true; open; asked.Add(1) {
				if _, err := w.call(list, "STATUS", "pod"); err != nil {
					t.Errorf("STATUS %d, after %d pods: %v", asked.Load(), added.Load(), err)
				}
				select {
				case _, open = <-ended:
				case <-time.After(pause):
				}
			}
			t.Logf("%d calls of STATUS beside %d ADDs and DELs; of EC2: %v", asked.Load(), added.Load(),
				w.fabric.EC2.Changed())
		})
	}
}

func (w *world) live(t *testing.T, list *libcni.NetworkConfigList, pod string) {
	for _, verb := range []string{"ADD", "DEL"} {
		if _, err := w.call(list, verb, pod); err != nil {
			t.Errorf("%s %s: %v", verb, pod, err)
		}
	}
}
