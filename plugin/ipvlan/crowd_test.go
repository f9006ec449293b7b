// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestCrowd runs processes that add and delete pods of one ENI at the same time, in both families. ipvlan keeps the
// addresses of all pods of an ENI in one table. A kernel without a lock for this table (CVE-2026-23103) may lose some
// addresses.
func TestCrowd(t *testing.T) {
	const pods, rounds = 32, 3
	b := newBench(t)
	var all []victim
	for i := range pods {
		r, pod := b.pod(`{}`, [2]string{fmt.Sprintf("10.0.1.%d/24", 20+i), "10.0.1.1"},
			[2]string{fmt.Sprintf("fd00:0:0:1::%x/64", 0x20+i), "fd00:0:0:1::1"})
		r.ContainerID = fmt.Sprintf("crowd%d", i)
		all = append(all, victim{b, r, pod, nltest.Dump(t, b.node, pod)})
	}
	for range rounds {
		together(all, "ADD")
		for _, v := range all {
			res, err := v.ADD(v.Request) // a second ADD changes nothing
			v.must(err)
			v.must(v.CHECK(v.Request, res))
		}
		together(all, "DEL")
		for _, v := range all {
			v.same("DEL left something", v.before, nltest.Dump(t, v.node, v.pod))
		}
	}
}

// together runs a command of each pod as a process, all at the same time.
func together(all []victim, verb string) {
	var processes []*exec.Cmd
	for _, v := range all {
		p := v.process(verb)
		v.Helper()
		v.must(v.node.Do(p.Start))
		processes = append(processes, p)
	}
	for i, p := range processes {
		if err := p.Wait(); err != nil {
			all[i].Errorf("%s of pod %d: %v", verb, i, err)
		}
	}
}
