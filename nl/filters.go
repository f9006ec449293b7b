// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"

	"golang.org/x/sys/unix"
)

// onLinks returns a copy of f for each link, with the link's index.
func (f filter) onLinks(n *NS, devs []string) (all []filter, err error) {
	for _, dev := range devs {
		if f.index, err = n.linkIndex(dev); err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

// addFilters adds f to each link, or replaces an old filter that differs from f. The argument "code" has the
// instructions of the program. After an error, addFilters removes the filters that this call has added.
func addFilters(n *NS, devs []string, f filter, code []byte) error {
	filters, err := f.onLinks(n, devs)
	if err != nil {
		return err
	}
	if eachFilter(n, filters, filter.checkSame) == nil {
		return errSame
	}
	program, err := openPinned(f.name, func() (int, error) { return loadBPF(code) })
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

// delFilters deletes one filter of ours from each link: the filter with the hook, the priority and the handle of f.
func delFilters(n *NS, devs []string, f filter) error {
	var errs []error
	missing := 0
	for _, dev := range devs {
		index, err := n.linkIndex(dev)
		if err == nil {
			f.index = index
			err = f.del(n)
		}
		if isNotExist(err) {
			missing++
			continue
		}
		errs = append(errs, err)
	}
	if missing == len(devs) {
		return notExistError{unix.ENOENT}
	}
	return errors.Join(errs...)
}

func checkFilters(n *NS, devs []string, f filter) error {
	filters, err := f.onLinks(n, devs)
	if err != nil {
		return err
	}
	return eachFilter(n, filters, filter.check)
}

func eachFilter(n *NS, filters []filter, check func(filter, *NS) error) error {
	for _, f := range filters {
		if err := check(f, n); err != nil {
			return err
		}
	}
	return nil
}
