// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"io/fs"
	"net/netip"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestRetry: an interrupted list is repeated up to 10 times. A list with another error is not repeated.
func TestRetry(t *testing.T) {
	other := errors.New("other")
	for _, c := range []struct {
		name        string
		interrupted int // how often in a row
		then        error
		want        error
		calls       int
	}{
		{"at once", 0, nil, nil, 1},
		{"the third time", 2, nil, nil, 3},
		{"another error", 1, other, other, 2},
		{"never", 1 << 30, nil, netlink.ErrDumpInterrupted, 10},
	} {
		calls := 0
		err := retryDump(func() error {
			if calls++; calls <= c.interrupted {
				return netlink.ErrDumpInterrupted
			}
			return c.then
		})
		if err != c.want || calls != c.calls {
			t.Errorf("%s: %v after %d calls, want %v after %d", c.name, err, calls, c.want, c.calls)
		}
	}
}

// TestKernel: errors of the kernel match those of package fs, and keep their errno and its text. Some texts of package
// fs would make containerd take the error for success.
func TestKernel(t *testing.T) {
	for errno, want := range map[syscall.Errno]error{
		unix.EEXIST: fs.ErrExist, unix.ENOENT: fs.ErrNotExist, unix.ESRCH: fs.ErrNotExist,
		unix.ENODEV: fs.ErrNotExist, unix.EADDRNOTAVAIL: fs.ErrNotExist, unix.EPERM: fs.ErrPermission,
	} {
		err := wrapNotExist(errno)
		if !errors.Is(err, want) || !errors.Is(err, errno) || err.Error() != errno.Error() {
			t.Errorf("%v does not answer to %v", err, want)
		}
	}
	if err := wrapNotExist(unix.ENETUNREACH); errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) {
		t.Errorf("%v is neither", err)
	}
}

// TestMeanings: the texts of these errors explain the cause, and the errors match those of package fs.
func TestMeanings(t *testing.T) {
	for _, c := range []struct {
		err, is error
		text    string
	}{
		{errSame, fs.ErrExist, "as it should be: file already exists"},
		{errGone, fs.ErrNotExist, "the namespace is gone: file does not exist"},
	} {
		if !errors.Is(c.err, c.is) || !errors.Is(c.err, c.err) || c.err.Error() != c.text {
			t.Errorf("%q, want %q", c.err, c.text)
		}
	}
	if errors.Is(errSame, errGone) || errors.Is(errSame, fs.ErrNotExist) {
		t.Errorf("%q means %q, too", errSame, errGone)
	}
}

// TestElements: the intervals of a set do not overlap, and none ends after the last address.
func TestElements(t *testing.T) {
	var got []string
	var prefixes []netip.Prefix
	for _, s := range []string{"255.0.0.0/8", "10.0.5.1/16", "10.0.1.0/24", "10.1.0.0/16", "10.0.0.0/16"} {
		prefixes = append(prefixes, netip.MustParsePrefix(s))
	}
	for _, e := range intervalElements(outermostPrefixes(prefixes)) {
		s := e.addr.String()
		if e.beyond {
			s = "before " + s
		}
		got = append(got, s)
	}
	want := []string{"10.0.0.0", "before 10.1.0.0", "10.1.0.0", "before 10.2.0.0", "255.0.0.0"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}
