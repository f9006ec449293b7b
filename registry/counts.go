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

// A node counts its ADDs and DELs, and their durations, in a file of numbers. Each process maps the file into its
// memory, and increments the numbers with atomic CPU instructions. So no process waits for another, and a killed
// process leaves no half-written number. The durations cannot be in the registry, because an ADD writes the registry
// for the last time before it has ended.
//
// The file is on tmpfs, so the numbers begin at zero with each boot. Prometheus allows this: a counter may return to
// zero, but must not decrease to a value other than zero.

// countsFile is the name of the file of numbers. A release that changes the rows of the file must also change the name.
// A process of an earlier release may still add to the old file.
const countsFile = "commands"

// The outcomes of commands. OK means that the command succeeded and did not wait for EC2. Waited means that the command
// succeeded after a wait for EC2. Again means that the command failed with CNI's error code 11, so that the runtime
// repeats the command. Refused means that the pod asked for something that it is not allowed to have.
const (
	OK      = "ok"
	Waited  = "waited"
	Again   = "again"
	Refused = "refused"
	Failed  = "failed"
)

var (
	countedCommands = [...]string{"ADD", "DEL"}
	outcomes        = [...]string{OK, Waited, Again, Refused, Failed}
)

// Bounds are the upper ends of the ranges of durations. The file of numbers has one count for each range.
var Bounds = [...]time.Duration{10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond,
	5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute}

// The file of numbers has a row for each pair of command and outcome. For each range of durations, the row has the
// number of commands in this range. The ranges are: up to Bounds[0], from Bounds[i-1] to Bounds[i], and above the last
// of Bounds. The last number of the row is the sum of all durations in microseconds.
const (
	countsPerRow = len(Bounds) + 2
	countSize    = len(countedCommands) * len(outcomes) * countsPerRow * 8
)

// A Tally has the number and the durations of the commands that had one outcome.
type Tally struct {
	Command, Outcome string
	Within           []uint64 // for each of Bounds, how many commands took at most this time
	Total            uint64
	Took             time.Duration // sum of all durations
}

// Count counts a command that has ended. The file of numbers is in dir, which is the registry's directory. Count
// ignores commands other than ADD and DEL. It also ignores its own errors, because the command must not fail because of
// them.
func Count(dir, command, outcome string, took time.Duration) {
	of, how := slices.Index(countedCommands[:], command), slices.Index(outcomes[:], outcome)
	if of < 0 || how < 0 {
		return
	}
	row := of*len(outcomes) + how
	bucket, _ := slices.BinarySearch(Bounds[:], took)
	numbers, err := mapCounts(dir)
	if err != nil {
		return
	}
	// If the file system is full, a write to the mapped file causes SIGBUS. Without the next two lines, SIGBUS would
	// end the process.
	defer func() { _ = recover() }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	add := func(i int, n uint64) {
		atomic.AddUint64((*uint64)(unsafe.Pointer(&numbers[(row*countsPerRow+i)*8])), n)
	}
	add(bucket, 1)
	add(countsPerRow-1, uint64(took.Microseconds()))
}

// mapCounts maps the file of numbers into memory until the process ends. If there is no file, mapCounts creates it.
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

// Counts returns a Tally for each pair of command and outcome since the boot, or since another program deleted the file
// of numbers. If there is no file, Counts returns no Tally.
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
	for row := range len(countedCommands) * len(outcomes) {
		c := Tally{Command: countedCommands[row/len(outcomes)], Outcome: outcomes[row%len(outcomes)]}
		for i := range countsPerRow - 1 {
			c.Total += number(row*countsPerRow + i)
			c.Within = append(c.Within, c.Total)
		}
		c.Within = c.Within[:len(Bounds)]
		c.Took = time.Duration(number(row*countsPerRow+countsPerRow-1)) * time.Microsecond
		all = append(all, c)
	}
	return all, nil
}
