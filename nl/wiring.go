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

// An Object is an object of the kernel as in ip(8): a link, an address, a route and so on. Use errors.Is to compare the
// errors of its methods with fs.ErrExist or fs.ErrNotExist.
type Object interface {
	Add(*NS) error   // the error is fs.ErrExist if the object exists
	Del(*NS) error   // the error is fs.ErrNotExist if the object does not exist
	Check(*NS) error // nil if the object exists with all its properties; fs.ErrNotExist if it does not exist
	fmt.Stringer     // the command that would add the object
}

// A Step is an Object and its namespace. NS is nil if the namespace is gone.
type Step struct {
	NS *NS
	Object
}

// A Wiring is a list of Objects, in the order in which Add adds them.
type Wiring []Step

// Steps returns one Step for each object, all in the namespace ns.
func Steps[O Object](ns *NS, objects []O) Wiring {
	w := make(Wiring, 0, len(objects))
	for _, o := range objects {
		w = append(w, Step{NS: ns, Object: o})
	}
	return w
}

// errSame is the error of an Object's Add if the namespace already has the object, with all its properties. It wraps
// fs.ErrExist. After any other error that wraps fs.ErrExist, Wiring.Add calls Check, because the properties may differ.
var errSame error = &textError{"as it should be", &fs.ErrExist}

// Add adds all Objects that do not exist yet. After an error, Add deletes the Objects that it has added, but no Object
// that existed before.
func (w Wiring) Add() error {
	defer w.rememberIndices()()
	var added Wiring
	for _, s := range w {
		existed, err := s.add()
		if err != nil {
			err = fmt.Errorf("%s: %w", s.label(), err)
			if undo := added.Del(); undo != nil {
				err = fmt.Errorf("%w; the undo failed, too: %w", err, undo)
			}
			return err
		}
		if !existed {
			added = append(added, s)
		}
	}
	return nil
}

// rememberIndices makes the namespaces of the Steps remember the indices of links. When the caller calls forget, the
// namespaces forget the indices. But a namespace that a context keeps open (see [KeepOpen]) forgets nothing. If another
// process replaces a link meanwhile, requests with the link's old index fail.
func (w Wiring) rememberIndices() (forget func()) {
	for _, s := range w {
		if s.NS != nil && s.NS.indices == nil {
			s.NS.indices = map[string]int{}
		}
	}
	return func() {
		for _, s := range w {
			if s.NS != nil && !s.NS.keptOpen {
				s.NS.indices = nil
			}
		}
	}
}

// forgetDeleted makes the namespaces forget all links if a link has been deleted. To forget only the deleted link is
// not enough: the other end of a veth pair is gone, too.
func (w Wiring) forgetDeleted() {
	lost := false
	w.eachNS(func(n *NS) { lost, n.linkDeleted = lost || n.linkDeleted, false })
	if lost {
		w.eachNS(func(n *NS) { clear(n.indices); clear(n.seen) })
	}
}

// eachNS calls f with the namespaces of the Steps. If a context keeps the node's namespace open, eachNS also calls f
// with the pod's namespace that the context keeps open (keptOther).
func (w Wiring) eachNS(f func(*NS)) {
	for _, s := range w {
		for n := s.NS; n != nil; n = n.keptOther {
			f(n)
		}
	}
}

func (s Step) add() (existed bool, err error) {
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

// Del deletes all Objects that exist, in reverse order. It continues after an error, and returns all errors together.
func (w Wiring) Del() (err error) {
	defer w.rememberIndices()()
	defer w.forgetDeleted()
	for i := len(w) - 1; i >= 0; i-- {
		s := w[i]
		if s.NS == nil {
			continue
		}
		if e := s.Object.Del(s.NS); e != nil && !isNotExist(e) {
			err = errors.Join(err, fmt.Errorf("%s: delete: %w", s.label(), e))
		}
	}
	return err
}

// Check returns an error that lists all Objects that are missing or have a wrong property.
func (w Wiring) Check() (err error) {
	for _, f := range w.Faults() {
		err = errors.Join(err, f)
	}
	return err
}

// A Fault is a Step whose Object is missing or has a wrong property. Wrong is the error of Check.
type Fault struct {
	Step
	Wrong error
}

func (f Fault) Error() string { return f.label() + ": " + f.Wrong.Error() }
func (f Fault) Unwrap() error { return f.Wrong }

// Faults returns a Fault for each Step whose Object is missing or has a wrong property.
func (w Wiring) Faults() (all []Fault) {
	defer w.rememberIndices()()
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

// String returns the commands that would add the Objects. Before each command, it writes the name of the namespace.
func (w Wiring) String() string {
	var b strings.Builder
	for _, s := range w {
		fmt.Fprintf(&b, "%-5s %s\n", s.name()+":", s.Object)
	}
	return b.String()
}

// errGone reports that the namespace of an Object is gone.
var errGone error = &textError{"the namespace is gone", &fs.ErrNotExist}

// A textError is an error that has a text of its own and wraps an error of package fs. The compiler can initialise it,
// so the error variables of this package cost a process no time before main.
type textError struct {
	text string
	of   *error
}

func (m *textError) Error() string { return m.text + ": " + m.Unwrap().Error() }
func (m *textError) Unwrap() error { return *m.of }

// label returns the text that names the Step in an error: the namespace's name, and the first line of the Object's
// command.
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

// isNotExist reports whether an error means that the namespace does not have an object. It also accepts the errors of a
// kernel in which the object's address family is missing or disabled.
func isNotExist(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}
