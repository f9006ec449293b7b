// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest/trace"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/bench/image"
)

// A recording has the system calls of one execution of a plugin, from its first read of the configuration on. The calls
// before are the start of Go's runtime. Later ones of the runtime are left out, too: see ownCalls.
type recording struct {
	calls []image.Call
	data  []byte // behind the calls
	begun bool
	seen  []int // by the number in the trace: which of the calls, or -1
	err   error

	pointers []pointer
}

// A pointer is a word of the recording that is an address: in an argument of a call, or in its data.
type pointer struct {
	call, arg int // arg -1: in the data, at offset at
	at        int
	to        int // an offset in the data, or in the room behind the file
	behind    bool
}

// A recorder executes a plugin and records its calls.
type recorder struct {
	executor
	recording recording
}

// ExecPlugin runs a plugin like the other executor.
func (r *recorder) ExecPlugin(_ context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	var stdout bytes.Buffer
	c := exec.Command(path)
	c.Env, c.Stdin, c.Stdout = append(environ, r.env...), bytes.NewReader(stdin), &stdout
	// Go's runtime may keep files of cgroups open (GODEBUG containermaxprocs). The others begin at 3 without them.
	c.Env = append(c.Environ(), "GODEBUG=containermaxprocs=0")
	t := trace.Trace{Every: true, Counts: r.recording.begin, Ended: r.recording.end}
	status, err := t.Run(c)
	if err == nil && status.ExitStatus() != 0 {
		err = fmt.Errorf("it ended with %d: %s", status.ExitStatus(), stdout.Bytes())
	}
	if err = errors.Join(err, r.recording.err); err != nil {
		return nil, fmt.Errorf("record %s: %w", path, err)
	}
	return stdout.Bytes(), nil
}

// begin records a call at its beginning, when its arguments are in memory.
func (r *recording) begin(c trace.Call) string {
	at := -1
	if c.Nr == unix.SYS_READ && c.Args[0] == 0 {
		r.begun = true
	}
	if r.begun && !slices.Contains(ownCalls, c.Nr) && r.err == nil {
		at = len(r.calls)
		r.err = r.add(c)
	}
	r.seen = append(r.seen, at)
	return fmt.Sprint(c.Nr)
}

// end records what a call returned.
func (r *recording) end(n int, result int64) {
	at := r.seen[n]
	if at < 0 || at >= len(r.calls) {
		return
	}
	c := &r.calls[at]
	c.Least, c.Most = 0, 1<<31
	if result < 0 || slices.Contains(opens, uint64(c.Number)) || c.Number == unix.SYS_BPF {
		c.Least, c.Most = int(result), int(result) // the same error, or the same number of a file
	}
}

// add adds a call with what its arguments point at.
func (r *recording) add(c trace.Call) error {
	kinds, ok := signatures[c.Nr]
	if !ok {
		return fmt.Errorf("system call %d: its arguments are not known: add them to signatures", c.Nr)
	}
	call := image.Call{Number: uintptr(c.Nr)}
	for i := range kinds {
		call.Args[i] = uintptr(c.Args[i])
	}
	r.calls = append(r.calls, call)
	for i, k := range kinds {
		if err := r.argument(c, i, k); err != nil {
			return fmt.Errorf("system call %d: argument %d: %w", c.Nr, i+1, err)
		}
	}
	if c.Nr == unix.SYS_BPF {
		return r.bpf(c)
	}
	return nil
}

// answerRoom is the room behind the file for one argument of a call: more than anybody reads at once.
const answerRoom = image.Room / 8

// argument records what an argument points at.
func (r *recording) argument(c trace.Call, i int, k kind) error {
	addr := uintptr(c.Args[i])
	if k == value || addr == 0 {
		return nil
	}
	p := pointer{call: len(r.calls) - 1, arg: i}
	size := int(k)
	switch k {
	case text:
		size = len(c.Text(i)) + 1
	case sized: // by the next argument
		size = int(c.Args[i+1])
	case answer:
		p.to, p.behind = i*answerRoom, true
		r.pointers = append(r.pointers, p)
		return nil
	}
	b, err := c.Bytes(addr, size)
	p.to = r.keep(b)
	r.pointers = append(r.pointers, p)
	return err
}

// keep adds data, and returns where it is.
func (r *recording) keep(b []byte) int {
	const word = 8
	r.data = append(r.data, make([]byte, -len(r.data)&(word-1))...)
	at := len(r.data)
	r.data = append(r.data, b...)
	return at
}

// bpf records what the argument of bpf(2) points at itself.
func (r *recording) bpf(c trace.Call) error {
	const pathname, info = 0, 8 // where union bpf_attr has these pointers
	attr := r.pointers[len(r.pointers)-1].to
	switch c.Args[0] {
	case unix.BPF_OBJ_GET:
		from := uintptr(binary.NativeEndian.Uint64(r.data[attr+pathname:]))
		name := c
		name.Args[1] = uint64(from)
		b, err := c.Bytes(from, len(name.Text(1))+1)
		r.pointers = append(r.pointers, pointer{arg: -1, at: attr + pathname, to: r.keep(b)})
		return err
	case unix.BPF_OBJ_GET_INFO_BY_FD:
		r.pointers = append(r.pointers, pointer{arg: -1, at: attr + info, behind: true})
		return nil
	}
	return fmt.Errorf("bpf command %d is not known", c.Args[0])
}

// setIndex makes the creation of a veth pair name the index that the kernel has chosen in the recording for the end in
// the node's namespace. Later calls name that index, and the kernel does not choose the same one again.
func (r *recording) setIndex(index int) error {
	const ifIndex = unix.SizeofNlMsghdr + 4 // of the struct ifinfomsg behind the struct nlmsghdr
	for _, p := range r.pointers {
		if p.arg != 1 || r.calls[p.call].Number != unix.SYS_WRITE {
			continue
		}
		m := r.data[p.to:][:r.calls[p.call].Args[2]]
		if createsVeth(m) {
			binary.NativeEndian.PutUint32(m[ifIndex:], uint32(index))
			return nil
		}
	}
	return errors.New("the recording makes no veth pair")
}

// createsVeth reports whether a message of netlink creates a veth pair.
func createsVeth(m []byte) bool {
	const typ, flags = 4, 6 // of the struct nlmsghdr
	return len(m) > unix.SizeofNlMsghdr && binary.NativeEndian.Uint16(m[typ:]) == unix.RTM_NEWLINK && binary.NativeEndian.Uint16(m[flags:])&unix.NLM_F_CREATE != 0 &&
		bytes.Contains(m, []byte("\x08\x00\x01\x00veth")) // IFLA_INFO_KIND
}

// write writes the recording to a file, as package image says. The file is a program, too, where there is machine code
// for it.
func (r *recording) write(file string) error {
	calls := append(slices.Clone(r.calls), image.Call{Number: unix.SYS_EXIT_GROUP})
	data := image.Calls + len(calls)*callSize
	size := data + len(r.data)
	address := func(p pointer) uint64 {
		if p.behind {
			return uint64(image.Behind(size)) + uint64(p.to)
		}
		return uint64(image.Base + data + p.to)
	}
	for _, p := range r.pointers {
		if p.arg >= 0 {
			calls[p.call].Args[p.arg] = uintptr(address(p))
		} else {
			binary.NativeEndian.PutUint64(r.data[p.at:], address(p))
		}
	}
	b := append(program(size), make([]byte, image.Calls)...)[:image.Calls]
	for _, c := range calls {
		for _, word := range slices.Concat([]uintptr{c.Number}, c.Args[:], []uintptr{uintptr(c.Least), uintptr(c.Most)}) {
			b = binary.NativeEndian.AppendUint64(b, uint64(word))
		}
	}
	return os.WriteFile(file, append(b, r.data...), 0o700)
}

// callSize is the size of an image.Call.
const callSize = 9 * 8
