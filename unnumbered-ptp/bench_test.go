// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import "testing"

// BenchmarkCommands measures each command in this process, without the start of a program.
func BenchmarkCommands(b *testing.B) {
	f := newFabric(b)
	p := f.pod("pod1", "10.0.1.50")
	nothing := func(*pod) error { return nil }
	for _, c := range []struct {
		name              string
		before, do, after func(*pod) error
	}{
		{"ADD", nothing, f.ADD, f.DEL},
		{"DEL", f.ADD, f.DEL, nothing},
		{"CHECK", f.ADD, f.CHECK, nothing},
		{"ADD again", f.ADD, f.ADD, nothing},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				if err := c.before(p); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if err := c.do(p); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := c.after(p); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
