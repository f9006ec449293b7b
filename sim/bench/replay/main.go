// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command replay is a CNI plugin that makes the system calls of another one again. What it costs is what the kernel needs
// for these calls, and the start and the end of the smallest Go program.
//
// The file $BENCH_REPLAY-$CNI_COMMAND has the calls, see package image. The last of them ends the process.
package main

import (
	"runtime"
	"syscall"
	"unsafe"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/bench/image"
)

// The thread enters the pod's namespace, so the calls must be made by one.
func init() { runtime.LockOSThread() }

func main() {
	prefix, _ := syscall.Getenv("BENCH_REPLAY")
	verb, _ := syscall.Getenv("CNI_COMMAND")
	if err := replay(prefix + "-" + verb); err != nil {
		fail("replay: " + prefix + "-" + verb + ": " + err.Error())
	}
}

func fail(text string) {
	_, _ = syscall.Write(2, []byte(text+"\n"))
	syscall.Exit(1)
}

// replay returns only if it fails.
func replay(file string) error {
	fd, err := syscall.Open(file, syscall.O_RDONLY, 0)
	if err != nil {
		return err
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return err
	}
	if err := mapAt(image.Base, uintptr(st.Size), syscall.MAP_PRIVATE, fd); err != nil {
		return err
	}
	if err := mapAt(image.Behind(int(st.Size)), image.Room, syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS, -1); err != nil {
		return err
	}
	const closeRange = 436 // close_range(2): the numbers of the files that the calls open begin at 3
	if _, _, errno := syscall.RawSyscall(closeRange, 3, 1<<31, 0); errno != 0 {
		return errno
	}
	calls := unsafe.Slice((*image.Call)(at(image.Base+image.Calls)), int(st.Size)/int(unsafe.Sizeof(image.Call{})))
	for i := range calls {
		c := &calls[i]
		a := &c.Args
		got, _, errno := syscall.RawSyscall6(c.Number, a[0], a[1], a[2], a[3], a[4], a[5])
		result := int(got)
		if errno != 0 {
			result = -int(errno)
		}
		if result < c.Least || result > c.Most {
			return &unexpected{i, result, c}
		}
	}
	return syscall.EINVAL // there was no last call
}

// mapAt maps a file, or nothing, at an address where nothing is yet.
func mapAt(addr, size uintptr, flags, fd int) error {
	const exactly = 0x100000 // MAP_FIXED_NOREPLACE
	got, _, errno := syscall.RawSyscall6(syscall.SYS_MMAP, addr, size, syscall.PROT_READ|syscall.PROT_WRITE, uintptr(flags|exactly), uintptr(fd), 0)
	switch {
	case errno != 0:
		return errno
	case got != addr: // Linux before 4.17 takes the flag for a hint
		return syscall.EEXIST
	}
	return nil
}

// at is what mapAt has mapped at an address.
func at(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// An unexpected result shows that the kernel did not do the same again.
type unexpected struct {
	i, got int
	*image.Call
}

func (u *unexpected) Error() string {
	return "call " + decimal(u.i) + ", of number " + decimal(int(u.Number)) + ", returned " + decimal(u.got) +
		", and not " + decimal(u.Least) + " to " + decimal(u.Most)
}

// decimal writes a number without package strconv, whose tables this program would load.
func decimal(n int) string {
	if n < 0 {
		return "-" + decimal(-n)
	}
	if n < 10 {
		return string(rune('0' + n))
	}
	return decimal(n/10) + decimal(n%10)
}
