// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nltest

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// Tracked returns the number of connections that the connection tracker has in a namespace.
func Tracked(t testing.TB, n *nl.NS) int {
	t.Helper()
	text, err := n.Sysctl("net/netfilter/nf_conntrack_count")
	if err != nil {
		t.Fatal(err)
	}
	count, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return count
}

// Hooked lists the tables of nftables and of iptables in a namespace. Without any table, the namespace uses no hook of
// netfilter, not even for the connection tracker.
func Hooked(t testing.TB, n *nl.NS) []string {
	t.Helper()
	tables, err := n.Tables()
	if err != nil {
		t.Fatal(err)
	}
	err = n.Do(func() error {
		for _, file := range []string{"ip_tables_names", "ip6_tables_names", "arp_tables_names"} {
			names, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			tables = append(tables, strings.Fields(string(names))...)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tables
}
