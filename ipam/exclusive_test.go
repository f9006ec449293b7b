// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestExclusivePool: each pod that asks for a whole ENI gets an ENI of its own, and no other pod gets an address of
// this ENI. When the pod has ended, the next pod that asks for a whole ENI gets this ENI. If the instance is full, the
// ADD fails with an error that says so.
func TestExclusivePool(t *testing.T) {
	w := newCity(t, "m5.large") // three ENIs
	allow := strings.Replace(allowAll, `"ips": true`, `"ips": true, "exclusive": true`, 1)
	whole := func(n int, ask string) (lease.Allocation, error) {
		all, err := w.ask(n, allow, ask)
		if err != nil {
			return lease.Allocation{}, err
		}
		return all[0], nil
	}
	first, err := whole(1, `[{"exclusive": true}]`)
	must(t, err)
	second, err := whole(2, `[{"exclusive": true, "subnet": "subnet-db"}]`)
	must(t, err)
	if again, err := whole(1, `[{"exclusive": true}]`); err != nil || again.ID != first.ID ||
		again.Addrs[0] != first.Addrs[0] {
		t.Errorf("a repeated ADD has %v of %s, %v: want %v of %s", again.Addrs, again.ID, err, first.Addrs, first.ID)
	}
	for id, want := range map[string]string{first.ID: "default/exclusive subnet-pods 1",
		second.ID: "default/exclusive/subnet-db subnet-db 1"} {
		if e := w.ENI(id); fmt.Sprint(e.Tags[book.TagPool], " ", e.Subnet, " ", len(e.Addrs)) != want {
			t.Errorf("%s is %+v, want %s", id, e, want)
		}
	}
	for n, ask := range map[int]string{3: `[{"exclusive": true}]`, 4: "",
		5: `[{"exclusive": true, "securityGroups": ["sg-2"]}]`} {
		if a, err := whole(n, ask); !errors.Is(err, aws.ErrInstanceFull) {
			t.Errorf("%s on a full instance: %v of %s, %v", ask, a.Addrs, a.ID, err)
		}
	}
	w.end(1)
	w.Age(time.Hour)
	if third, err := whole(3, `[{"exclusive": true}]`); err != nil || third.ID != first.ID {
		t.Errorf("a pod after the first has %v of %s, %v: want %s", third.Addrs, third.ID, err, first.ID)
	}
	w.end(3)
	w.Age(time.Hour)
	w.collect()
	if _, attached := w.State().ENIs[first.ID]; attached {
		t.Errorf("%s is still attached, and no pod uses it", first.ID)
	}
	w.consistent()
}

// TestExclusiveENI: two pods ask for the same ENI, and at least one of them asks for the whole ENI. The ADD of the
// second pod is refused, and changes nothing in EC2.
func TestExclusiveENI(t *testing.T) {
	w := newCity(t, "m5.large")
	allow := strings.Replace(allowAll, `"ips": true`, `"ips": true, "exclusive": true`, 1)
	e := w.given(aws.ENISpec{Subnet: "subnet-db", Secondary: 3})
	share, whole := fmt.Sprintf(`[{"eni": %q}]`, e.ID), fmt.Sprintf(`[{"eni": %q, "exclusive": true}]`, e.ID)
	for i, order := range [][]string{{share, whole}, {whole, share}, {whole, whole}} {
		first, second := 2*i, 2*i+1
		_, err := w.ask(first, allow, order[0])
		must(t, err)
		w.EC2.ResetCalls()
		_, err = w.ask(second, allow, order[1])
		wantRefusal(t, err, "the pod asks for "+e.ID+", which default/pod00"+fmt.Sprint(first)+
			" uses, and one of the two pods asks for the whole ENI")
		w.wantWrites(nil)
		w.end(first)
		w.Age(time.Hour)
	}
}

// TestLinkInPod: no address of an ENI has a lease, but the ENI's link is in a pod's namespace. So the pod uses the ENI.
// No process deletes or detaches it, whether the node or an operator has created the ENI.
func TestLinkInPod(t *testing.T) {
	w := newCity(t, "m5.large")
	given := w.given(aws.ENISpec{Subnet: "subnet-db"})
	ours := w.mustAsk(1, "")[0].ID
	w.mustAsk(2, fmt.Sprintf(`[{"eni": %q}]`, given.ID))
	pod, _ := nltest.NS(t, "pod")
	var cards []nl.MovedLink
	for i, id := range []string{ours, given.ID} {
		c := nl.MovedLink{Name: fmt.Sprint("eth", i), MAC: w.ENI(id).MAC, NS: pod}
		must(t, c.Add(w.Host))
		cards = append(cards, c)
		w.end(i + 1)
	}
	for range 2 {
		w.Age(2 * time.Hour)
		if c := w.collect(); len(c.Deleted)+len(c.Detached) > 0 {
			t.Errorf("the collection has deleted %v and detached %v", c.Deleted, c.Detached)
		}
	}
	if err := w.pool().Remove(t.Context(), ours); err == nil || !strings.Contains(err.Error(),
		"its link is in the namespace of a pod") {
		t.Errorf("remove %s: %v", ours, err)
	}
	for _, c := range cards {
		must(t, c.Del(w.Host))
	}
	w.Age(2 * time.Hour)
	if c := w.collect(); !slices.Equal(c.Deleted, []string{ours}) || !slices.Equal(c.Detached, []string{given.ID}) {
		t.Errorf("when the links are back, the collection has deleted %v and detached %v", c.Deleted, c.Detached)
	}
}

// TestExclusiveDetached: an operator detaches the whole ENI of a pod. The slot of this ENI is free for another ENI,
// although the pod has not ended. The ENI's link was in the pod, so no missing link on the node shows the detachment.
func TestExclusiveDetached(t *testing.T) {
	w := newCity(t, "m5.large") // three ENIs
	allow := strings.Replace(allowAll, `"ips": true`, `"ips": true, "exclusive": true`, 1)
	pod, _ := nltest.NS(t, "pod")
	for n := range 2 {
		all, err := w.ask(n, allow, `[{"exclusive": true}]`)
		must(t, err)
		must(t, nl.MovedLink{Name: fmt.Sprint("eth", n), MAC: w.ENI(all[0].ID).MAC, NS: pod}.Add(w.Host))
	}
	if _, err := w.ask(2, allow, ""); !errors.Is(err, aws.ErrInstanceFull) {
		t.Errorf("ADD on a full instance: %v", err)
	}
	w.Operate("DetachNetworkInterface", "AttachmentId", w.EC2.ENIs()[1].Attachment)
	w.Age(time.Hour)
	all, err := w.ask(3, allow, "")
	must(t, err)
	if e := w.ENI(all[0].ID); e.Instance == "" || e.Tags[book.TagPool] != "default" {
		t.Errorf("the pod is on %+v", e)
	}
}
