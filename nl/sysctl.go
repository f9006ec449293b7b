// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A Sysctl is a parameter of the kernel under net, which every namespace has
// its own of. Deleting it does nothing: what belongs to a link goes with the
// link, and what belongs to the namespace others may rely on by now.
type Sysctl struct {
	// Key is the path beneath /proc/sys, "net/ipv4/ip_forward": with dots for
	// slashes the name of a link that has a dot in it could not be told.
	Key   string
	Value string
}

func (s Sysctl) String() string {
	key := s.Key
	if !strings.Contains(key, ".") {
		key = strings.ReplaceAll(key, "/", ".") // as sysctl(8) writes it
	}
	value := s.Value
	if strings.Contains(value, " ") {
		value = strconv.Quote(value)
	}
	return "sysctl -w " + key + "=" + value
}

// Add sets the value.
func (s Sysctl) Add(n *NS) error {
	return n.Do(func() error {
		if s.check() == nil {
			return errSame // to write is to disturb: ip_forward=1 resets a dozen others
		}
		return os.WriteFile(s.path(), []byte(s.Value), 0o644)
	})
}

// Del does nothing.
func (s Sysctl) Del(*NS) error { return nil }

// Check compares the value.
func (s Sysctl) Check(n *NS) error { return n.Do(s.check) }

func (s Sysctl) check() error {
	b, err := os.ReadFile(s.path())
	if err != nil {
		return err
	}
	if v := strings.Join(strings.Fields(string(b)), " "); v != s.Value { // a tab between two numbers
		return fmt.Errorf("it is %s", v)
	}
	return nil
}

func (s Sysctl) path() string { return filepath.Join("/proc/sys", s.Key) }

// Sysctl reads a parameter of the namespace.
func (n *NS) Sysctl(key string) (string, error) {
	var value string
	err := n.Do(func() error {
		b, err := os.ReadFile(Sysctl{Key: key}.path())
		value = strings.TrimSpace(string(b))
		return err
	})
	return value, err
}
