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

// An Object is an object as in ip(8). A namespace either has the object or does not have it. Compare the errors of the
// methods by errors.Is.
type Object interface {
	Add(*NS) error   // the error is fs.ErrExist if the object is there
	Del(*NS) error   // the error is fs.ErrNotExist if the object is not there
	Check(*NS) error // nil if the object is right; the error is fs.ErrNotExist if it is not there
	fmt.Stringer     // the command that adds the object
}

// A Step is an object and its namespace. NS is nil if the namespace is gone, with everything in it.
type Step struct {
	NS *NS
	Object
}

// A Wiring lists objects in the order in which they are added.
type Wiring []Step

// errSame is the error of an Add that has found the object there and right. After errSame, Wiring.Add need not call
// Check.
var errSame error = &meaning{"as it should be", &fs.ErrExist}

// Add adds every object that is not there yet. If an object fails, Add deletes the objects that it has added, but no
// object that was there before.
func (w Wiring) Add() error {
	defer w.remember()()
	var added Wiring
	for _, s := range w {
		was, err := s.add()
		if err != nil {
			err = fmt.Errorf("%s: %w", s.label(), err)
			if undo := added.Del(); undo != nil {
				err = fmt.Errorf("%w; the undo failed, too: %w", err, undo)
			}
			return err
		}
		if !was {
			added = append(added, s)
		}
	}
	return nil
}

// remember makes the namespaces of the steps remember the indices of links until forget is called. A namespace that a
// context keeps (see [KeepOpen]) remembers the indices for the whole command. If another process replaces a link
// meanwhile, the remembered index is invalid, and a request fails.
func (w Wiring) remember() (forget func()) {
	for _, s := range w {
		if s.NS != nil && s.NS.indices == nil {
			s.NS.indices = map[string]int{}
		}
	}
	return func() {
		for _, s := range w {
			if s.NS != nil && !s.NS.kept {
				s.NS.indices = nil
			}
		}
	}
}

// deleted makes the namespaces forget all indices if a link has been deleted. The reason is that the other end of a
// deleted pair is gone, too.
func (w Wiring) deleted() {
	lost := false
	w.each(func(n *NS) { lost, n.lost = lost || n.lost, false })
	if lost {
		w.each(func(n *NS) { clear(n.indices); clear(n.seen) })
	}
}

// each calls f with the namespaces of the steps, and with the namespaces that a context keeps beside them (NS.other).
func (w Wiring) each(f func(*NS)) {
	for _, s := range w {
		for n := s.NS; n != nil; n = n.other {
			f(n)
		}
	}
}

// add adds one object. The first result reports that the object was there already, and right.
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
			return true, fmt.Errorf("%w: another object is in its place (%v)", err, wrong)
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
	defer w.deleted()
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

// Check reports each object that is missing or wrong.
func (w Wiring) Check() (err error) {
	for _, f := range w.Faults() {
		err = errors.Join(err, f)
	}
	return err
}

// A Fault is a step whose object is missing or wrong.
type Fault struct {
	Step
	Wrong error
}

func (f Fault) Error() string { return f.label() + ": " + f.Wrong.Error() }
func (f Fault) Unwrap() error { return f.Wrong }

// Faults lists the steps whose object is missing or wrong.
func (w Wiring) Faults() (all []Fault) {
	defer w.remember()()
	for _, s := range w {
		wrong := errGone
		if s.NS != nil {
			wrong = s.Object.Check(s.NS)
		}
		if wrong != nil {
			all = append(all, Fault{s, wrong})
		}
	}
	return all
}

// String is the wiring as a script: a line for each object, with the name of the namespace
// before it.
func (w Wiring) String() string {
	var b strings.Builder
	for _, s := range w {
		fmt.Fprintf(&b, "%-5s %s\n", s.name()+":", s.Object)
	}
	return b.String()
}

// errGone is the error of a namespace that is gone.
var errGone error = &meaning{"the namespace is gone", &fs.ErrNotExist}

// A meaning is an error with a text, and wraps an error of package fs. The compiler puts a meaning into the program's
// data. Errors of fmt.Errorf in package variables would cost each process time before main.
type meaning struct {
	text string
	of   *error
}

func (m *meaning) Error() string { return m.text + ": " + m.Unwrap().Error() }
func (m *meaning) Unwrap() error { return *m.of }

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

// absent reports whether an error of Del means that there was nothing to delete. A kernel without an address family, or
// with the family disabled, has no objects of this family.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}
