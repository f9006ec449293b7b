// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"

	"golang.org/x/sys/unix"
)

// addFilters adds filters that have one program, or replaces those that differ.
func addFilters(n *NS, filters []filter, code []byte) error {
	if checkFilters(n, filters, filter.same) == nil {
		return errSame
	}
	keep := func(_ string, open func() (int, error)) (int, error) { return open() }
	if canPin() {
		keep = pinned
	}
	program, err := keep(filters[0].name, func() (int, error) { return loadBPF(code) })
	if err != nil {
		return err
	}
	defer unix.Close(program)
	for i, f := range filters {
		if err := f.add(n, program); err != nil {
			for _, done := range filters[:i] {
				_ = done.del(n)
			}
			return err
		}
	}
	return nil
}

// delFilters deletes the filters that links have in the place of f.
func delFilters(n *NS, devs []string, f filter) error {
	var errs []error
	missing := 0
	for _, dev := range devs {
		index, err := n.index(dev)
		if err == nil {
			f.index = index
			err = f.del(n)
		}
		if absent(err) {
			missing++
			continue
		}
		errs = append(errs, err)
	}
	if missing == len(devs) {
		return absence{unix.ENOENT}
	}
	return errors.Join(errs...)
}

func checkFilters(n *NS, filters []filter, check func(filter, *NS) error) error {
	for _, f := range filters {
		if err := check(f, n); err != nil {
			return err
		}
	}
	return nil
}
