// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/bpf"
)

// ErrNoBPF reports that the kernel cannot run a BPF program on a link's packets. Such a kernel is too old, was built
// without BPF, or is locked down.
var ErrNoBPF = errors.New("this kernel does not run our BPF programs")

// loadBPF loads a program into the kernel, and returns its file descriptor. If the kernel refuses the program, loadBPF
// loads the program once more, this time with a log of the verifier. The log shows the reason.
func loadBPF(code []byte) (fd int, err error) {
	err = withMemory(func() (err error) { fd, err = progLoad(code, nil); return err })
	if err == nil {
		return fd, nil
	}
	log := make([]byte, 1<<16)
	if fd, again := progLoad(code, log); again == nil {
		return fd, nil
	}
	return -1, fmt.Errorf("%w: %w%s", ErrNoBPF, err, verifierReason(log))
}

// verifierReason returns the last line of the verifier's log. It skips empty lines, and the line "processed ..." with
// the verifier's statistics.
func verifierReason(log []byte) string {
	lines := strings.Split(strings.TrimSpace(unix.ByteSliceToString(log)), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if lines[i] != "" && !strings.HasPrefix(lines[i], "processed ") {
			return ": " + lines[i]
		}
	}
	return ""
}

// progLoad loads a program. It tries again if a signal interrupts the verifier (bpf_check: signal_pending), because
// Go's runtime sends signals to its threads.
func progLoad(code, log []byte) (fd int, err error) {
	const tries = 20
	for range tries {
		if fd, err = progLoadOnce(code, log); err != unix.EAGAIN {
			break
		}
	}
	return fd, err
}

func progLoadOnce(code, log []byte) (int, error) {
	license := []byte("Apache-2.0\x00")
	attr := struct { // the beginning of union bpf_attr for BPF_PROG_LOAD, see bpf(2)
		progType, count   uint32
		code, license     *byte // pointers have 64 bits on every instance of EC2
		logLevel, logSize uint32
		log               *byte
	}{
		progType: unix.BPF_PROG_TYPE_SCHED_CLS, count: uint32(len(code) / bpf.InsnSize),
		code: &code[0], license: &license[0],
	}
	if len(log) > 0 {
		attr.logLevel, attr.logSize, attr.log = 1, uint32(len(log)), &log[0]
	}
	return bpfCommand(unix.BPF_PROG_LOAD, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
}

// createMap creates an LRU map, and returns its file descriptor. When the map is full, a new entry replaces the entry
// that was unused for the longest time.
func createMap(keySize, valueSize, entries uint32) (fd int, err error) {
	attr := struct{ mapType, keySize, valueSize, maxEntries, flags uint32 }{unix.BPF_MAP_TYPE_LRU_HASH, keySize,
		valueSize, entries, 0}
	err = withMemory(func() (err error) {
		fd, err = bpfCommand(unix.BPF_MAP_CREATE, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("%w: %w", ErrNoBPF, err)
	}
	return fd, nil
}

// withMemory calls f. If f fails with EPERM, withMemory removes the limit of locked memory (RLIMIT_MEMLOCK), and calls
// f again. Kernels before 5.11 count programs and maps as locked memory.
func withMemory(f func() error) error {
	err := f()
	if errors.Is(err, unix.EPERM) && unix.Setrlimit(unix.RLIMIT_MEMLOCK,
		&unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}) == nil {
		err = f()
	}
	return err
}
