// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"
)

// An Object is what ip(8) calls one: a thing that a namespace has or has not.
type Object interface {
	Add(*NS) error   // the error answers to fs.ErrExist if it is there
	Del(*NS) error   // the error answers to fs.ErrNotExist if it is not there
	Check(*NS) error // nil if it is there as it should be; fs.ErrNotExist if it is not there
	fmt.Stringer     // the command that adds it
}

// A Step is an object and the namespace it belongs to. The namespace is nil
// when it is gone, and everything in it with it.
type Step struct {
	NS *NS
	Object
}

// A Wiring lists objects in the order they are added.
type Wiring []Step

// errSame says that an object is there exactly as it should be, where the kernel
// said so: it saves Wiring.Add the Check.
var errSame = fmt.Errorf("as it should be: %w", fs.ErrExist)

// Add adds every object that is not there yet. If it fails it deletes again
// what it has added, and nothing that was there before.
func (w Wiring) Add() error {
	defer w.remember()()
	var added Wiring
	for _, s := range w {
		was, err := s.add()
		if err != nil {
			err = fmt.Errorf("%s: %w", s.label(), err)
			if undo := added.Del(); undo != nil {
				err = fmt.Errorf("%w; taking back: %w", err, undo)
			}
			return err
		}
		if !was {
			added = append(added, s)
		}
	}
	return nil
}

// remember has the namespaces keep in mind which index each link has until forget is
// called. If somebody else replaces a link meanwhile, its index names nothing.
func (w Wiring) remember() (forget func()) {
	for _, s := range w {
		if s.NS != nil && s.NS.indices == nil {
			s.NS.indices = map[string]int{}
		}
	}
	return func() {
		for _, s := range w {
			if s.NS != nil {
				s.NS.indices = nil
			}
		}
	}
}

// add adds one object; was says that it was there already, as it should be.
func (s Step) add() (was bool, err error) {
	if s.NS == nil {
		return false, errGone
	}
	err = s.Object.Add(s.NS)
	switch {
	case err == nil:
		return false, nil
	case errors.Is(err, errSame):
		return true, nil
	case errors.Is(err, fs.ErrExist):
		wrong := s.Object.Check(s.NS)
		if errors.Is(wrong, fs.ErrNotExist) {
			return true, fmt.Errorf("%w: another is in its place", err)
		} else if wrong != nil {
			return true, fmt.Errorf("%w: %v", err, wrong)
		}
		return true, nil
	}
	return false, err
}

// Del deletes every object that is there, last first, and joins the errors.
func (w Wiring) Del() (err error) {
	defer w.remember()()
	for i := len(w) - 1; i >= 0; i-- {
		s := w[i]
		if s.NS == nil {
			continue
		}
		if e := s.Object.Del(s.NS); e != nil && !absent(e) {
			err = errors.Join(err, fmt.Errorf("%s: delete: %w", s.label(), e))
		}
	}
	return err
}

// Check reports each object that is missing or is not as it should be.
func (w Wiring) Check() (err error) {
	defer w.remember()()
	for _, s := range w {
		e := errGone
		if s.NS != nil {
			e = s.Object.Check(s.NS)
		}
		if e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", s.label(), e))
		}
	}
	return err
}

// String is the wiring as a script, a line for each object and the name of the
// namespace before it.
func (w Wiring) String() string {
	var b strings.Builder
	for _, s := range w {
		fmt.Fprintf(&b, "%-5s %s\n", s.name()+":", s.Object)
	}
	return b.String()
}

// errGone is the answer of a namespace that is not there.
var errGone = fmt.Errorf("the namespace is gone: %w", fs.ErrNotExist)

// label names the step in an error, by the first line of its command.
func (s Step) label() string {
	line, _, more := strings.Cut(s.Object.String(), "\n")
	if more {
		line += "..."
	}
	return s.name() + ": " + line
}

func (s Step) name() string {
	if s.NS == nil {
		return "-"
	}
	return s.NS.Name
}

// absent says whether an error of Del means that there was nothing to delete. A
// kernel without an address family, or with the family disabled, has no objects
// of it.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}
