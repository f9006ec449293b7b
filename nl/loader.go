// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import "golang.org/x/sys/unix"

// A memory is the maps of a Splice's programs.
type memory struct {
	kept   int // what the sockets do not tell, or tell wrongly: see onward, noSocket and fragments
	looped int // the last connections of TCP that have begun by the veth, to tell what answers them
}

// A loader loads the programs of a Splice. It opens their maps when it has to load the
// first: a program that is kept has its own already.
type loader struct {
	memory
	keep    func(name string, open func() (int, error)) (int, error)
	entries uint32 // of a map, each of a tenth of a kB
}

func newLoader(share bool) *loader {
	closed := memory{-1, -1}
	if share { // with all pods of the node
		return &loader{closed, pinned, 16384}
	}
	return &loader{closed, unpinned, 1024}
}

// program returns the file of the program of a name.
func (l *loader) program(name string, code func(memory) []byte) (int, error) {
	return l.keep(name, func() (int, error) {
		if err := l.open(); err != nil {
			return -1, err
		}
		return loadBPF(code(l.memory))
	})
}

// open opens the maps that are not open yet.
func (l *loader) open() (err error) {
	if l.kept < 0 {
		l.kept, err = l.openMap("memory")
	}
	if err == nil && l.looped < 0 {
		l.looped, err = l.openMap("looped")
	}
	return err
}

// openMap opens a map by its name. Where it is kept it outlives this release, and so the
// name has to change when the keys do.
func (l *loader) openMap(name string) (int, error) {
	return l.keep(fingerprint(name, nil), func() (int, error) { return createMap(keySize, l.entries) })
}

func (l *loader) close() {
	for _, fd := range []int{l.kept, l.looped} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
