// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"
)

// changer is an environment variable with the path of a registry's directory. If it is set, the test binary changes
// this registry, and runs no tests. If the path is empty, the process changes nothing.
const changer = "REGISTRY_TEST_CHANGER"

// BenchmarkChange measures the CPU time of a process that ends a lease or begins it again. It subtracts the CPU time of
// a process that does nothing. On a clock that counts instructions, a nanosecond is one instruction:
//
//	CGO_ENABLED=0 go test -c -o bin/registry.test ./registry
//	nl/nltest/vm/icount bin/registry.test -test.run '^$' -test.bench Change -test.benchtime 30x
//
// The heap begins at a random address, which changes the number of huge pages. To repeat the figures, build with
// GOEXPERIMENT=norandomizedheapbase64.
func BenchmarkChange(b *testing.B) {
	onNodes(b, func(b *testing.B, r *Registry) {
		var cpu time.Duration
		for range b.N {
			cpu += changing(b, r.dir) - changing(b, "")
		}
		b.ReportMetric(float64(view(b, r).fileSize), "bytes")
		b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N), "cpu-ns/op")
	})
}

// BenchmarkLeases measures the time to read all leases, as the tool does.
func BenchmarkLeases(b *testing.B) {
	onNodes(b, func(b *testing.B, r *Registry) {
		for range b.N {
			for range view(b, r).Leases.All() {
			}
		}
	})
}

// onNodes runs a benchmark with the registries of a small node and of large nodes.
func onNodes(b *testing.B, run func(*testing.B, *Registry)) {
	for _, n := range []struct {
		name               string
		pods, enis, perENI int
		prefixes           bool
	}{
		{"pod 1", 1, 2, 64, false},
		{"prefixes", 1500, 2, 64, true},
		{"single addresses", 1500, 24, 64, false},
		{"four cards", 1500, 32, 50, false},
	} {
		b.Run(n.name, func(b *testing.B) { run(b, crowded(b, n.pods, n.enis, n.perENI, n.prefixes)) })
	}
}

// changing returns the CPU time of a process that changes the registry in dir.
func changing(b *testing.B, dir string) time.Duration {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	// As in a plugin, there is no garbage collection, and no memory profile.
	cmd.Env = append(os.Environ(), "GOGC=off", "GODEBUG=memprofilerate=0", changer+"="+dir)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		b.Fatal(err)
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

// change ends a lease of the registry in dir, or begins it again.
func change(dir string) error {
	if dir == "" {
		return nil
	}
	return (&Registry{dir}).Update(context.Background(), func(s *State) error {
		l, before := podLease(0), s.Leases.Len()
		if s.EndOf(l.Key, time.Now(), time.Now().Add(time.Hour)); s.Leases.Len() < before {
			return nil
		}
		for a := range s.Free.Keys() {
			return s.Reserve(a, l)
		}
		return errors.New("none free")
	})
}

// podLease returns a lease like those of a large node. The argument i is the number of the pod.
func podLease(i int) Lease {
	name := fmt.Sprintf("node1-pod%d", i)
	return Lease{
		Key: Key{"pods", Attachment{ContainerID: fmt.Sprintf("%x", sha256.Sum256([]byte(name))),
			IfName: "eth0"}},
		PodNamespace: "bench", PodName: name, NetNS: "/run/netns/" + name,
		ENI: fmt.Sprintf("eni-%017x", i/64), Bound: true, Since: time.Unix(1790000000, int64(i)*1000003).UTC(),
	}
}

// crowded returns the registry of a node with this number of pods. The registry is on a tmpfs, as in /run.
func crowded(b *testing.B, pods, enis, perENI int, prefixes bool) *Registry {
	b.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "registry-*")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	r := &Registry{dir}
	update(b, r, func(s *State) {
		read := time.Unix(1790000000, 0).UTC()
		s.VPCs["vpc-0123456789abcdef0"] = VPC{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}}
		own := addr("10.0.0.16")
		for i := range enis {
			e := ENI{MAC: fmt.Sprintf("06:00:00:00:00:%02x", i), Link: fmt.Sprint("eth", i), Index: i,
				Subnet: "subnet-0123456789abcdef0",
				CIDR:   netip.MustParsePrefix("10.0.0.0/16"), VPC: "vpc-0123456789abcdef0", Managed: true, Read: read,
				Grown: read, Serving: true}
			for j := range perENI {
				if prefixes && j > 0 {
					first := netip.AddrFrom4([4]byte{10, 1, byte(i*4 + j/16), byte(j % 16 * 16)})
					e.Prefixes = append(e.Prefixes, Prefix{CIDR: netip.PrefixFrom(first, 28), Since: read})
					continue
				}
				e.Addrs, own = append(e.Addrs, own), own.Next()
			}
			s.ENIs[fmt.Sprintf("eni-%017x", i)] = e
		}
		free, last := addr("10.0.0.17"), own
		if prefixes {
			free, last = addr("10.1.0.0"), addr("10.1.8.0")
		}
		for n := 0; free.Less(last); n, free = n+1, free.Next() {
			if n >= pods {
				s.Free.Set(free, time.Time{})
			} else if err := s.Reserve(free, podLease(n)); err != nil {
				b.Fatal(err)
			}
			if prefixes && n > pods { // an address that never had a lease has no entry
				break
			}
		}
	})
	return r
}
