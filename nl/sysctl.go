// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Sysctl is a parameter of the kernel under net. Each namespace has its own value of the parameter. Del does nothing:
// a link's parameters end with the link, and other programs may rely on the namespace's other parameters by then.
type Sysctl struct {
	// Key is the path below /proc/sys, "net/ipv4/ip_forward". Slashes separate its parts: if dots did so, the name of a
	// link that contains a dot would be ambiguous.
	Key   string
	Value string
	Also  bool // the value is a range in a list of ranges of numbers, and Add keeps the other entries of the list
	// Optional is for a parameter that a kernel may not have, such as all parameters of IPv6.
	Optional bool
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
	err := s.change(n, s.over)
	if s.Optional && errors.Is(err, fs.ErrNotExist) {
		return errSame
	}
	return err
}

// over returns the value to set. Its argument is the present value of the parameter.
func (s Sysctl) over(is string) string {
	switch {
	case s.has(is):
		return is
	case s.Also && is != "":
		return is + "," + s.Value
	}
	return s.Value
}

// change replaces the value by the value that the function wanted returns for it. change does not write an equal value,
// because even such a write has effects. For example, ip_forward=1 resets a dozen other parameters. Opening the file
// costs the most, so change opens the file once.
func (s Sysctl) change(n *NS, wanted func(is string) string) error {
	fd, err := s.open(n, unix.O_RDWR)
	if err != nil {
		return s.refused(n, err, wanted)
	}
	defer unix.Close(fd)
	is, err := s.readFrom(fd)
	value := wanted(is)
	if err == nil && value == is {
		return errSame
	}
	return s.writeTo(fd, value)
}

// ErrReadOnly reports that a parameter has another value than the wanted one, and that this process may not write it.
var ErrReadOnly = errors.New("this process may not write this sysctl: set the value before, for example in " +
	"/etc/sysctl.d, or give the container runtime a writable /proc/sys")

// refused returns the error about a parameter that this process cannot open to write it. If the value is right, the
// error is errSame.
func (s Sysctl) refused(n *NS, err error, wanted func(is string) string) error {
	is, unread := s.read(n)
	if unread != nil {
		return err
	}
	want := wanted(is)
	if want == is {
		return errSame
	}
	return fmt.Errorf("%w: the value is %q, and %q is needed: %w", err, is, want, ErrReadOnly)
}

// Settable fails if the parameter has another value, and this process may not write the parameter. Then Add would also
// fail.
func (s Sysctl) Settable(n *NS) error {
	fd, err := s.open(n, unix.O_WRONLY)
	if err == nil {
		unix.Close(fd)
		return nil
	}
	err = s.refused(n, err, s.over)
	if errors.Is(err, errSame) || s.Optional && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// write sets the value without reading the old value. If this process may not write the parameter, write fails only if
// the value is wrong.
func (s Sysctl) write(n *NS) error {
	fd, err := s.open(n, unix.O_WRONLY)
	if err != nil {
		if err = s.refused(n, err, s.over); errors.Is(err, errSame) {
			return nil
		}
		return err
	}
	defer unix.Close(fd)
	return s.writeTo(fd, s.Value)
}

// writeTo writes at the beginning of the file, because the kernel ignores what a process writes at another offset
// (sysctl_writes_strict).
func (s Sysctl) writeTo(fd int, value string) error {
	if _, err := unix.Pwrite(fd, []byte(value), 0); err != nil {
		return &fs.PathError{Op: "write", Path: s.path(), Err: err}
	}
	return nil
}

// open opens the parameter of the namespace. The file belongs to the namespace in which it was opened
// (net_ctl_header_lookup). open does not use package os, which would register the file with the runtime's poller. The
// registration would double the cost of reading or writing a parameter.
func (s Sysctl) open(n *NS, mode int) (int, error) {
	fd, err := n.openSysctl(s.Key, mode)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: s.path(), Err: err}
	}
	return fd, nil
}

// openSysctl opens a parameter. If n is the namespace of the process, openSysctl keeps the directory /proc/sys/net/ipv4
// or ipv6 open, and opens the parameter relative to it.
//
// The reason is the kernel's cache of names, which has these directories once for each namespace, in one list. A lookup
// compares the directories one after the other, the newest first (proc_sys_compare). On a node with 1500 pods, a lookup
// for the node takes a fiftieth of an ADD. A lookup for a pod is quick, because the pod to which an ADD applies is the
// newest.
func (n *NS) openSysctl(key string, mode int) (int, error) {
	at := len("net/ipv4")
	if !n.process || len(key) <= at || key[at] != '/' {
		return n.open(sysctls+key, mode)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	dir, known := n.sysctls[key[:at]]
	if !known {
		var err error
		if dir, err = n.open(sysctls+key[:at], unix.O_PATH|unix.O_DIRECTORY); err != nil {
			return -1, err
		}
		if n.sysctls == nil {
			n.sysctls = map[string]int{}
		}
		n.sysctls[key[:at]] = dir
	}
	return unix.Openat(dir, key[at+1:], mode|unix.O_CLOEXEC, 0)
}

// Del does nothing.
func (s Sysctl) Del(*NS) error { return nil }

// Check returns an error if the parameter has another value.
func (s Sysctl) Check(n *NS) error {
	v, err := s.read(n)
	switch {
	case s.Optional && errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && !s.has(v):
		return fmt.Errorf("the value is %s", v)
	}
	return err
}

// has reports whether value is the wanted value, or, with Also, a list with a range that contains the wanted range. The
// kernel merges ranges that overlap or that touch each other (proc_do_large_bitmap).
func (s Sysctl) has(value string) bool {
	if !s.Also || value == s.Value {
		return value == s.Value
	}
	first, last, valid := parseRange(s.Value)
	for entry := range strings.SplitSeq(value, ",") {
		if from, to, is := parseRange(entry); is && valid && from <= first && last <= to {
			return true
		}
	}
	return false
}

// parseRange reads a range of numbers, "1-3", or a single number.
func parseRange(text string) (first, last int, valid bool) {
	from, to, several := strings.Cut(text, "-")
	if !several {
		to = from
	}
	first, err1 := strconv.Atoi(from)
	last, err2 := strconv.Atoi(to)
	return first, last, err1 == nil && err2 == nil
}

// read reads the value, with a space instead of the kernel's tab between two numbers.
func (s Sysctl) read(n *NS) (string, error) {
	fd, err := s.open(n, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return s.readFrom(fd)
}

func (s Sysctl) readFrom(fd int) (string, error) {
	room := rooms.Get().(*[nl.RECEIVE_BUFFER_SIZE]byte)
	defer rooms.Put(room)
	n, err := unix.Read(fd, room[:4096]) // the kernel returns no more in one read
	if err != nil {
		return "", &fs.PathError{Op: "read", Path: s.path(), Err: err}
	}
	return strings.Join(strings.Fields(string(room[:n])), " "), nil
}

// sysctls is where the kernel has its parameters.
const sysctls = "/proc/sys/"

func (s Sysctl) path() string { return sysctls + s.Key }

// Sysctl reads a parameter of the namespace.
func (n *NS) Sysctl(key string) (string, error) { return Sysctl{Key: key}.read(n) }
