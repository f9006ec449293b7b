// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// moved returns the text of the registry's file with all times moved by d. The argument keep is a key whose values
// stay. The text is like a file that a person has edited: a reader does not take it for a file of ours.
func moved(t testing.TB, file []byte, d time.Duration, keep string) []byte {
	t.Helper()
	var v any
	must(t, json.Unmarshal(file, &v))
	out, err := json.Marshal(moveAll(v, "", d, keep))
	must(t, err)
	return out
}

func moveAll(v any, name string, d time.Duration, keep string) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			v[key] = moveAll(value, key, d, keep)
		}
	case []any:
		for i, value := range v {
			v[i] = moveAll(value, "", d, keep)
		}
	case string:
		if at, err := time.Parse(time.RFC3339, v); err == nil && !at.IsZero() && name != keep {
			return at.Add(d).Format(time.RFC3339Nano)
		}
	}
	return v
}

// TestClockOnlyDelays: a step of the clock, or of the times in the registry, delays ADDs by at most the time for which
// an address cools. A step of the clock does not shorten the cooling.
func TestClockOnlyDelays(t *testing.T) {
	const day = 24 * time.Hour
	for _, step := range []time.Duration{-day, day} {
		for _, keep := range []string{"booted", ""} {
			t.Run(fmt.Sprintf("%v keep %q", step, keep), func(t *testing.T) {
				inBubble(t, "m5.large", func(w *world, _ *wires) {
					w.busy()
					file := filepath.Join(w.Dir, "registry.json")
					b, err := os.ReadFile(file)
					must(w, err)
					must(w, os.WriteFile(file, moved(w, b, step, keep), 0o600))
					took := w.succeeds(100)
					early := took < w.policy.ReuseWait-time.Second && (keep == "" || step > 0)
					if early || took > w.policy.ReuseWait+10*time.Second {
						w.Errorf("the ADD has its address after %v", took)
					}
				})
			})
		}
	}
}

// busy gives pods all addresses that the node can have, and ends one pod, whose address then cools. The registry also
// says that EC2 throttles, the quota is used up, the instance is full, and a call is under way.
func (w *world) busy() {
	for n := range 20 {
		w.mustAcquire(n)
	}
	w.end(7)
	w.Edit(func(s *registry.State) {
		s.Intents["token"] = registry.Intent{Action: book.AttachAction, ENI: w.EC2.ENIs()[1].ID, Since: time.Now()}
		for _, action := range []string{"AssignPrivateIpAddresses", "DescribeNetworkInterfaces", book.AttachAction} {
			s.NotBefore[action] = time.Now().Add(registry.MostBackoff)
		}
		s.Instance.QuotaUntil = time.Now().Add(registry.MostQuota)
		s.Instance.FullUntil = time.Now().Add(registry.MostFull)
	})
}

// succeeds repeats an ADD every second, for at most five minutes. It returns the time until the ADD has succeeded.
func (w *world) succeeds(n int) time.Duration {
	began := time.Now()
	for ; time.Since(began) < 5*time.Minute; time.Sleep(time.Second) {
		if _, err := w.acquire(n); err == nil {
			break
		}
	}
	return time.Since(began)
}

// beforeStep returns the time t as a process has read it before the clock was set back by d. The wall time is later by
// d, and the monotonic time is the same.
func beforeStep(t time.Time, d time.Duration) time.Time {
	const secondsOfWall = 30 // the first bit of the seconds in the field wall of a time.Time with a monotonic clock
	*(*uint64)(unsafe.Pointer(&t)) += uint64(d/time.Second) << secondsOfWall
	return t
}

// TestAskedBeforeClockStep: the clock is set back by an hour while EC2 answers. By the wall clock, the question then
// lies in the future. The answer must still count as older than the registry's new entries. It confirms no rebuilt
// registry, and the registry keeps the new ENI and its addresses.
func TestAskedBeforeClockStep(t *testing.T) {
	asked, recently := beforeStep(time.Now(), time.Hour), time.Now().Add(-5*time.Second).Round(0)
	if ahead := time.Until(asked.Round(0)); ahead < time.Hour/2 || time.Since(asked) > time.Minute {
		t.Fatalf("the question is %v ahead by the wall clock, and %v ago by the other", ahead, time.Since(asked))
	}
	a := netip.MustParseAddr("10.177.16.9")
	s := &registry.State{
		Instance: registry.Instance{ID: "i-1"},
		Rebuilt:  registry.Rebuilt{Since: recently, Unconfirmed: true},
		Gone:     map[netip.Addr]time.Time{},
		ENIs: map[string]registry.ENI{"eni-2": {Index: 1, Grown: recently, Missed: recently,
			Addrs: []netip.Addr{netip.MustParseAddr("10.177.16.8"), a}}},
	}
	seen := []aws.ENI{{ID: "eni-2", Instance: "i-1", Addrs: s.ENIs["eni-2"].Addrs[:1]}}
	if known.Confirm(s, seen, asked) || !s.Rebuilt.Unconfirmed {
		t.Errorf("the registry is confirmed: %+v", s.Rebuilt)
	}
	if known.Agree(s, seen, asked); len(s.ENIs["eni-2"].Addrs) != 2 {
		t.Errorf("the ENI has %v, and lacks %v", s.ENIs["eni-2"].Addrs, a)
	}
	if known.NoteAttached(s, nil, asked); s.ENIs["eni-2"].Detached {
		t.Errorf("the new ENI counts as detached: %+v", s.ENIs["eni-2"])
	}
	if s.Instance.FullRead.After(time.Now()) {
		t.Errorf("EC2 was asked at %v", s.Instance.FullRead)
	}
}

// TestSupersededAfterSmallClockStep: two ADDs of an attachment began, and then the clock was set back by half a second.
// By the new clock, the lease of the later ADD begins in the future. Only the earlier ADD is superseded.
func TestSupersededAfterSmallClockStep(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	t.Setenv("CNI_IPVLAN_VPC_STATE_DIR", w.Dir)
	a := w.mustAcquire(1)
	r := &plugin.Request[lease.Config]{Network: pod(1).Network, Attachment: pod(1).Attachment}
	for lead, want := range map[time.Duration]bool{-100 * time.Millisecond: true, 100 * time.Millisecond: false} {
		later := time.Now().Add(500 * time.Millisecond)
		w.Edit(func(s *registry.State) {
			l, _ := s.Leases.At(a)
			l.Since = later.Round(0)
			s.Leases.Set(a, l)
		})
		if got := lease.Superseded(r, later.Add(lead)); got != want {
			t.Errorf("an ADD that began %v after the lease is superseded: %v", lead, got)
		}
	}
}

// TestSupersededAfterClockStep: an ADD began, the clock was set back by an hour, and a later ADD of the attachment
// began. Only the earlier ADD is superseded.
func TestSupersededAfterClockStep(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	t.Setenv("CNI_IPVLAN_VPC_STATE_DIR", w.Dir)
	before := beforeStep(time.Now(), time.Hour)
	w.mustAcquire(1)
	r := &plugin.Request[lease.Config]{Network: pod(1).Network, Attachment: pod(1).Attachment}
	for began, want := range map[time.Time]bool{before: true, beforeStep(time.Now(), time.Hour): false} {
		if got := lease.Superseded(r, began); got != want {
			t.Errorf("an ADD that began %v ago is superseded: %v", time.Since(began), got)
		}
	}
}
