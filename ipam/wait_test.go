// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// TestBusyMetadata: an ADD waits while metadata throttles, or is unavailable.
func TestBusyMetadata(t *testing.T) {
	for _, status := range []int{429, 503} {
		for _, busy := range []time.Duration{time.Second / 2, 20 * time.Second, time.Hour} {
			t.Run(http.StatusText(status)+" "+busy.String(), func(t *testing.T) {
				inBubble(t, "m5.large", func(w *world, wires *wires) {
					began := time.Now()
					wires.metadata = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
						if time.Since(began) < busy {
							rw.WriteHeader(status)
							return
						}
						w.Metadata().ServeHTTP(rw, r)
					})
					_, err := w.acquire(1)
					if busy < w.policy.Timeout && err != nil {
						w.Error(err)
					}
					took := time.Since(began)
					if busy > w.policy.Timeout && (!errors.Is(err, aws.ErrTransient) ||
						took < w.policy.Timeout-registry.MostBackoff || took > w.policy.Timeout) {
						w.Errorf("after %v: %v", took, err)
					}
					if took > busy+registry.MostBackoff+3*time.Second {
						w.Errorf("it took %v", took)
					}
				})
			})
		}
	}
}

// TestNoInstanceID: the instance identity document has no instance ID. The ADD fails, and makes only a few requests to
// metadata.
func TestNoInstanceID(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, wires *wires) {
		wires.metadata = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/instance-identity/document") {
				rw.Write([]byte(
					`{"availabilityZone": "us-east-1a", "instanceType": "m5.large", "region": "us-east-1"}`))
				return
			}
			w.Metadata().ServeHTTP(rw, r)
		})
		if _, err := w.acquire(1); err == nil || !strings.Contains(err.Error(), "it has no instanceId") {
			w.Errorf("got %v", err)
		}
		if n, s := wires.asked.Load(), w.State(); n > 10 || len(s.Intents) > 0 {
			w.Errorf("%d requests, intents %v", n, s.Intents)
		}
	})
}

// TestNoProgress: if a growth has brought no free address, the ADD pauses before the next growth. Here, the node has
// routes to all addresses that EC2 assigns, so none of them is free.
func TestNoProgress(t *testing.T) {
	inBubble(t, "m5.4xlarge", func(w *world, _ *wires) {
		wiring := nl.Wiring{{NS: w.Host, Object: nl.Veth{Name: "veth0", Peer: "veth1", PeerNS: w.Host}}}
		for a, n := netip.MustParseAddr("10.177.16.4"), 0; n < 250; a, n = a.Next(), n+1 {
			wiring = append(wiring, nl.Step{NS: w.Host, Object: nl.Route{Dst: netip.PrefixFrom(a, 32), Dev: "veth0"}})
		}
		must(w, wiring.Add())
		began := time.Now()
		if _, err := w.acquire(1); err == nil || !strings.Contains(err.Error(), "other pods have taken all of them") {
			w.Errorf("got %v", err)
		}
		if n, took := w.EC2.Asked("AssignPrivateIpAddresses"), time.Since(began); n > 40 || took < w.policy.Timeout/2 {
			w.Errorf("%d calls in %v", n, took)
		}
	})
}

// TestNotRunning: EC2 refuses to attach an ENI, because the instance does not run. The node must not take the instance
// for full.
func TestNotRunning(t *testing.T) {
	for _, code := range []string{"InvalidParameterValue", "IncorrectInstanceState"} {
		t.Run(code, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.EC2.FailAs("AttachNetworkInterface", code, "Instance '"+w.ID+"' is not 'running'.", -1)
				if _, err := w.acquire(1); err == nil || errors.Is(err, aws.ErrInstanceFull) ||
					!strings.Contains(err.Error(), "is not 'running'") {
					w.Errorf("got %v", err)
				}
				if until := w.State().Instance.FullUntil; !until.IsZero() {
					w.Errorf("the instance is full until %v", until)
				}
				w.EC2.Fail("AttachNetworkInterface", code, 0)
				w.mustAcquire(2)
				if n := len(w.EC2.ENIs()); n != 2 {
					w.Errorf("%d ENIs", n)
				}
			})
		})
	}
}

// TestHiddenENI: metadata hides an ENI from a new node, so the instance seems to have room for another. When EC2
// refuses to attach another ENI, the node finds the hidden ENI. If EC2 also hides this ENI, the node finds it as soon
// as metadata shows it. Pods get its addresses when an ADD has found it and the addresses have cooled.
func TestHiddenENI(t *testing.T) {
	for _, kind := range []string{"forget", "hide", "number", "also by EC2"} {
		t.Run(kind, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.policy.Timeout = 10 * time.Second
				second := w.launched()
				stop := w.Lie(map[string]ec2sim.Lie{"forget": ec2sim.ForgetENI(second),
					"hide":   ec2sim.HideENI(second),
					"number": ec2sim.ZeroDeviceNumber(second), "also by EC2": ec2sim.ForgetENI(second)}[kind])
				for n := range 10 {
					w.mustAcquire(n)
				}
				if kind == "also by EC2" {
					w.Edit(func(s *registry.State) {
						s.Instance.FullUntil = time.Now().Add(registry.MostFull)
					})
				}
				if _, err := w.acquire(10); !errors.Is(err, aws.ErrInstanceFull) {
					w.Errorf("got %v", err)
				}
				if kind == "also by EC2" {
					stop()
				}
				told := time.Now()
				for n := 10; n < 20; time.Sleep(time.Second) {
					if _, err := w.acquire(n); err == nil {
						n++
					} else if time.Since(told) > w.policy.ReuseWait+10*time.Second {
						w.Fatalf("after %v: %v", time.Since(told), err)
					}
				}
				if _, err := w.acquire(20); !errors.Is(err, aws.ErrInstanceFull) {
					w.Errorf("an ADD too many: %v", err)
				}
				w.consistent()
			})
		})
	}
}

// TestPartlyShownENI: the keys of a new ENI appear in metadata one after another. The registry keeps what it knows of
// an ENI, and the next pod gets the same routes, gateways and DNS server as the pod before.
func TestPartlyShownENI(t *testing.T) {
	for _, keys := range [][]string{
		{"vpc-id"}, {"vpc-id", "vpc-ipv4-cidr-block", "vpc-ipv4-cidr-blocks", "vpc-ipv6-cidr-blocks"},
		{"vpc-ipv4-cidr-blocks"}, {"subnet-id"},
		{"subnet-ipv4-cidr-block"}, {"subnet-ipv4-cidr-block", "local-ipv4s"}, {"subnet-ipv6-cidr-blocks"},
		{"subnet-ipv6-cidr-blocks", "ipv6-prefix"},
	} {
		v4, v6 := newWorld(t, "m5.large", 20), newWorld6(t, "m5.large")
		v6.policy.Families = dual
		for _, w := range []*world{v4, v6} {
			w.policy.Batch = 2
			first, err := w.acquire(1)
			must(t, err)
			w.Lie(ec2sim.HideKeys(first.ID, keys...))
			must(t, w.pool().Learn(t.Context()))
			second, err := w.acquire(2)
			must(t, err)
			a, b := first.Result("eth1", w.policy), second.Result("eth1", w.policy)
			same := second.ID == first.ID && reflect.DeepEqual(a.Routes, b.Routes) && reflect.DeepEqual(a.DNS, b.DNS) &&
				len(a.IPs) == len(b.IPs)
			for i := range a.IPs {
				same = same && a.IPs[i].Gateway.Equal(b.IPs[i].Gateway) &&
					slices.Equal(a.IPs[i].Address.Mask, b.IPs[i].Address.Mask)
			}
			if !same {
				t.Errorf("without %v, on %s after %s:\n%v\n%v", keys, second.ID, first.ID, b, a)
			}
		}
	}
}

// TestPartlyShownOther: the node does not take a partly shown ENI of others for one without IPv4 or without a VPC. The
// ENI serves pods when metadata shows all of its keys.
func TestPartlyShownOther(t *testing.T) {
	for _, keys := range [][]string{{"local-ipv4s"}, {"local-ipv4s", "subnet-ipv4-cidr-block"}, {"vpc-id"},
		{"subnet-id"}, {"subnet-ipv6-cidr-blocks"}} {
		w := newWorld6(t, "m5.large")
		must(t, w.pool().Learn(t.Context()))
		id := w.attachOther(aws.ENISpec{Subnet: "subnet-pod0", IPv6Prefixes: 1})
		stop := w.Lie(ec2sim.HideKeys(id, keys...))
		must(t, w.pool().Learn(t.Context()))
		if e, known := w.State().ENIs[id]; known {
			t.Errorf("without %v: %+v", keys, e)
		}
		stop()
		must(t, w.pool().Learn(t.Context()))
		if e := w.State().ENIs[id]; e.Primary() != w.EC2.ENIs()[1].Addrs[0] || !e.CIDR.IsValid() ||
			!e.CIDR6.IsValid() || e.VPC != "vpc-1" {
			t.Errorf("after %v: %+v", keys, e)
		}
	}
}

// launched attaches two ENIs with ten addresses each, like ENIs of a launch template. It returns the ID of the second
// ENI.
func (w *world) launched() (id string) {
	c := aws.New(w.cloud)
	for index := range 2 {
		e, err := c.CreateENI(w.Context(), aws.ENISpec{Subnet: "subnet-pod0", Description: "from the launch template",
			Secondary: 9})
		must(w, err)
		_, err = c.AttachENI(w.Context(), e.ID, w.ID, 0, index+1)
		must(w, err)
		id = e.ID
	}
	return id
}
