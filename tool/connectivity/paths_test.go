// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package connectivity

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// TestBoth: a server answers a small call, and then accepts no connection, or ends each without an answer. Only in the
// second case, large packets may be lost.
func TestBoth(t *testing.T) {
	n, _ := nltest.NS(t, "node")
	nltest.Shell(t, n, "ip link set lo up")
	for _, tt := range []struct {
		refuses bool
		want    error
	}{{true, errRefused}, {false, errLarge}} {
		var l net.Listener
		if err := n.Do(func() (err error) { l, err = net.Listen("tcp4", "127.0.0.1:0"); return err }); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- answerOnce(l, tt.refuses) }()
		if err := both(t.Context(), n, netip.MustParseAddrPort(l.Addr().String())); !errors.Is(err, tt.want) {
			t.Errorf("refuses %v: %v, want %v", tt.refuses, err, tt.want)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// answerOnce answers one call. Before that, it ends the listener if refuses is true. Otherwise it ends the next
// connection without an answer.
func answerOnce(l net.Listener, refuses bool) error {
	defer l.Close()
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	if refuses {
		l.Close()
	}
	if _, err := bufio.NewReader(c).ReadString('\n'); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(c, "{}"); err != nil || refuses {
		return err
	}
	next, err := l.Accept()
	if err != nil {
		return err
	}
	return next.Close()
}

// TestAddTimeout: the plugins take an addTimeout of 1 to 90, whatever --within is.
func TestAddTimeout(t *testing.T) {
	for within, want := range map[time.Duration]time.Duration{Least: 6 * time.Second, time.Hour: conf.MostAddTimeout} {
		if got := (Test{Within: within}).addTimeout(); got != want {
			t.Errorf("--within %v: addTimeout %v, want %v", within, got, want)
		}
	}
}
