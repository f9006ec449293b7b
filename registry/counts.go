// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A node counts its commands in a file of numbers, which each process maps into its memory, and adds to by an atomic
// instruction of the CPU. So no process waits for another, none is lost in a burst, and a killed process leaves whole
// numbers. The registry cannot count: an ADD has written it before it knows how long it takes.
//
// The file is on tmpfs: the numbers begin at zero with each boot. Counters of Prometheus may do that, and only that.

// countsFile is the name of the file. A release with other numbers takes another name: a process of an earlier release
// may still add to this file.
const countsFile = "commands"

// Outcomes are how commands end. OK is without a wait for EC2, and Waited with one. Again is CNI's code 11: the runtime
// repeats the command. With Refused, the pod asks for what it may not have.
const (
	OK      = "ok"
	Waited  = "waited"
	Again   = "again"
	Refused = "refused"
	Failed  = "failed"
)

var (
	counted  = [...]string{"ADD", "DEL"}
	outcomes = [...]string{OK, Waited, Again, Refused, Failed}
)

// Bounds are the upper bounds of the times that are counted together.
var Bounds = [...]time.Duration{10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond,
	5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute}

// A row of the file is for a command with an outcome. It has a count for each bound: how often the command took at most
// this time, and more than the bound before. Then come the count of longer times, and the sum of all times in
// microseconds.
const (
	perRow    = len(Bounds) + 2
	countSize = len(counted) * len(outcomes) * perRow * 8
)

// A Tally is how often a command has had an outcome.
type Tally struct {
	Command, Outcome string
	Within           []uint64 // for each of Bounds, how often it took no longer
	Total            uint64
	Took             time.Duration // all together
}

// Count counts a command that has ended, in the registry's directory. It counts only ADDs and DELs. If the count fails,
// the command does not fail: it has done its work.
func Count(dir, command, outcome string, took time.Duration) {
	of, how := slices.Index(counted[:], command), slices.Index(outcomes[:], outcome)
	if of < 0 || how < 0 {
		return
	}
	row := of*len(outcomes) + how
	bucket, _ := slices.BinarySearch(Bounds[:], took)
	numbers, err := mapCounts(dir)
	if err != nil {
		return
	}
	// A full file system has no page for the file: the kernel sends SIGBUS, which would end the process.
	defer func() { _ = recover() }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	add := func(i int, n uint64) { atomic.AddUint64((*uint64)(unsafe.Pointer(&numbers[(row*perRow+i)*8])), n) }
	add(bucket, 1)
	add(perRow-1, uint64(took.Microseconds()))
}

// mapCounts maps the file until the process ends, and creates it if there is none.
func mapCounts(dir string) ([]byte, error) {
	path := dir + "/" + countsFile
	const flags = unix.O_RDWR | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Open(path, flags, 0)
	if errors.Is(err, fs.ErrNotExist) {
		fd, err = unix.Open(path, flags|unix.O_CREAT, 0o600)
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Size < int64(countSize) {
		err = unix.Ftruncate(fd, int64(countSize))
	}
	if err != nil {
		return nil, err
	}
	return unix.Mmap(fd, 0, countSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// Counts are the commands that have ended since the boot, or since a program has deleted the file. There is one for
// each command and outcome, or none if there is no file.
func Counts(dir string) ([]Tally, error) {
	text, err := os.ReadFile(dir + "/" + countsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	text = append(text, make([]byte, max(0, countSize-len(text)))...)
	number := func(i int) uint64 { return binary.NativeEndian.Uint64(text[i*8:]) }
	var all []Tally
	for row := range len(counted) * len(outcomes) {
		c := Tally{Command: counted[row/len(outcomes)], Outcome: outcomes[row%len(outcomes)]}
		for i := range perRow - 1 {
			c.Total += number(row*perRow + i)
			c.Within = append(c.Within, c.Total)
		}
		c.Within = c.Within[:len(Bounds)]
		c.Took = time.Duration(number(row*perRow+perRow-1)) * time.Microsecond
		all = append(all, c)
	}
	return all, nil
}
