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

// A Sysctl is a parameter of a network namespace, with its value. The parameter is a file below /proc/sys/net. Del does
// nothing: the kernel deletes a link's parameters with the link, and other programs may rely on the namespace's other
// parameters.
type Sysctl struct {
	// Key is the path below /proc/sys, such as "net/ipv4/ip_forward". Its separators are slashes, because the name of a
	// link may contain a dot.
	Key   string
	Value string
	Also  bool // the parameter is a list of ranges of numbers: Add adds the range Value to this list
	// Optional: Add and Check succeed even if the kernel does not have the parameter. Kernels without IPv6 have no
	// parameters of IPv6.
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

func (s Sysctl) Add(n *NS) error {
	err := s.updateValue(n, s.mergedValue)
	if s.Optional && errors.Is(err, fs.ErrNotExist) {
		return errSame
	}
	return err
}

// mergedValue returns the value that Add writes if the argument "current" is the parameter's present value.
func (s Sysctl) mergedValue(current string) string {
	switch {
	case s.hasValue(current):
		return current
	case s.Also && current != "":
		return current + "," + s.Value
	}
	return s.Value
}

// updateValue reads the parameter, passes its value to newValue, and writes the result of newValue if this result
// differs from the value. The write of an equal value could have effects: ip_forward=1 resets a dozen other parameters.
// The file is opened only once, because opening costs more than reading and writing.
func (s Sysctl) updateValue(n *NS, newValue func(current string) string) error {
	fd, err := s.openFile(n, unix.O_RDWR)
	if err != nil {
		return s.writeError(n, err, newValue)
	}
	defer unix.Close(fd)
	current, err := s.readFrom(fd)
	value := newValue(current)
	if err == nil && value == current {
		return errSame
	}
	return s.writeTo(fd, value)
}

// ErrReadOnly reports that a sysctl has a wrong value, and that this process cannot write it.
var ErrReadOnly = errors.New("this process is not allowed to write this sysctl. Set the value in /etc/sysctl.d, or " +
	"give the container runtime a writable /proc/sys")

// writeError takes the error of an attempt to open the parameter's file for writing. It returns an error that names the
// present and the needed value, or errSame if the two are equal.
func (s Sysctl) writeError(n *NS, err error, newValue func(current string) string) error {
	current, unread := s.readValue(n)
	if unread != nil {
		return err
	}
	want := newValue(current)
	if want == current {
		return errSame
	}
	return fmt.Errorf("%w: the value is %q, and %q is needed: %w", err, current, want, ErrReadOnly)
}

// Settable returns nil if this process can write the parameter, or if the parameter already has the right value. It
// also returns nil if Optional is true and the parameter is missing. Otherwise, Settable returns an error.
func (s Sysctl) Settable(n *NS) error {
	fd, err := s.openFile(n, unix.O_WRONLY)
	if err == nil {
		unix.Close(fd)
		return nil
	}
	err = s.writeError(n, err, s.mergedValue)
	if errors.Is(err, errSame) || s.Optional && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// writeValue writes the value without reading the parameter first. If this process cannot write, writeValue reads the
// parameter, and returns an error only if the value differs.
func (s Sysctl) writeValue(n *NS) error {
	fd, err := s.openFile(n, unix.O_WRONLY)
	if err != nil {
		if err = s.writeError(n, err, s.mergedValue); errors.Is(err, errSame) {
			return nil
		}
		return err
	}
	defer unix.Close(fd)
	return s.writeTo(fd, s.Value)
}

// writeTo writes a value to a file. It writes at offset 0, because the kernel ignores writes at other offsets
// (sysctl_writes_strict).
func (s Sysctl) writeTo(fd int, value string) error {
	if _, err := unix.Pwrite(fd, []byte(value), 0); err != nil {
		return &fs.PathError{Op: "write", Path: s.path(), Err: err}
	}
	return nil
}

// openFile opens the parameter's file. The file belongs to the namespace in which it was opened
// (net_ctl_header_lookup). os.Open would also register the file with the runtime's poller, which doubles the cost of a
// read or write.
func (s Sysctl) openFile(n *NS, mode int) (int, error) {
	fd, err := n.openSysctl(s.Key, mode)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: s.path(), Err: err}
	}
	return fd, nil
}

// openSysctl opens the file of a parameter. If n is the namespace of the process, openSysctl keeps the directory
// /proc/sys/net/ipv4 or /proc/sys/net/ipv6 open, and opens the file relative to this directory.
//
// The lookup of this directory is slow for the node: the kernel's dentry cache has one list with an entry for each
// namespace, the newest first (proc_sys_compare). On a node with 1500 pods, one lookup for the node takes a fiftieth of
// the time of an ADD. For a pod, the lookup is quick, because during an ADD, the entry of the pod's namespace is the
// first.
func (n *NS) openSysctl(key string, mode int) (int, error) {
	at := len("net/ipv4")
	if !n.isProcess || len(key) <= at || key[at] != '/' {
		return n.openFile(sysctlDir+key, mode)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	dir, known := n.sysctlDirs[key[:at]]
	if !known {
		var err error
		if dir, err = n.openFile(sysctlDir+key[:at], unix.O_PATH|unix.O_DIRECTORY); err != nil {
			return -1, err
		}
		if n.sysctlDirs == nil {
			n.sysctlDirs = map[string]int{}
		}
		n.sysctlDirs[key[:at]] = dir
	}
	return unix.Openat(dir, key[at+1:], mode|unix.O_CLOEXEC, 0)
}

func (s Sysctl) Del(*NS) error { return nil }

// Check returns an error if the parameter has another value. With Also, it returns an error only if the parameter's
// list does not contain the range Value.
func (s Sysctl) Check(n *NS) error {
	v, err := s.readValue(n)
	switch {
	case s.Optional && errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && !s.hasValue(v):
		return fmt.Errorf("the value is %s", v)
	}
	return err
}

// hasValue reports whether value is equal to s.Value. If Also is set, value is a list of ranges, and one range that
// contains s.Value is enough. The kernel merges ranges that overlap or touch (proc_do_large_bitmap).
func (s Sysctl) hasValue(value string) bool {
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

// parseRange parses a range of numbers, such as "1-3", or a single number.
func parseRange(text string) (first, last int, valid bool) {
	from, to, several := strings.Cut(text, "-")
	if !several {
		to = from
	}
	first, err1 := strconv.Atoi(from)
	last, err2 := strconv.Atoi(to)
	return first, last, err1 == nil && err2 == nil
}

// readValue reads the parameter. Numbers in the result are separated by spaces, and not by tabs as in the file.
func (s Sysctl) readValue(n *NS) (string, error) {
	fd, err := s.openFile(n, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return s.readFrom(fd)
}

func (s Sysctl) readFrom(fd int) (string, error) {
	room := answerBuffers.Get().(*[nl.RECEIVE_BUFFER_SIZE]byte)
	defer answerBuffers.Put(room)
	n, err := unix.Read(fd, room[:4096]) // the kernel returns no more in one read
	if err != nil {
		return "", &fs.PathError{Op: "read", Path: s.path(), Err: err}
	}
	return strings.Join(strings.Fields(string(room[:n])), " "), nil
}

const sysctlDir = "/proc/sys/"

func (s Sysctl) path() string { return sysctlDir + s.Key }

// Sysctl returns the value of a parameter of the namespace. key is the path, as in the field Key of a [Sysctl].
func (n *NS) Sysctl(key string) (string, error) { return Sysctl{Key: key}.readValue(n) }
