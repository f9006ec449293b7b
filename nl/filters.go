// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"

	"golang.org/x/sys/unix"
)

// at returns a copy of the filter for each of the links.
func (f filter) at(n *NS, devs []string) (all []filter, err error) {
	for _, dev := range devs {
		if f.index, err = n.index(dev); err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

// addFilters adds the filter f with the program code to links, or replaces filters that differ from f.
func addFilters(n *NS, devs []string, f filter, code []byte) error {
	filters, err := f.at(n, devs)
	if err != nil {
		return err
	}
	if eachFilter(n, filters, filter.same) == nil {
		return errSame
	}
	program, err := pinned(f.name, func() (int, error) { return loadBPF(code) })
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

// delFilters deletes the filter of each link that is in the place of f: at the same hook, with the same priority and
// handle.
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

// checkFilters returns an error if the filter of a link differs from f.
func checkFilters(n *NS, devs []string, f filter) error {
	filters, err := f.at(n, devs)
	if err != nil {
		return err
	}
	return eachFilter(n, filters, filter.check)
}

// eachFilter calls check for each filter, and returns the first error.
func eachFilter(n *NS, filters []filter, check func(filter, *NS) error) error {
	for _, f := range filters {
		if err := check(f, n); err != nil {
			return err
		}
	}
	return nil
}
