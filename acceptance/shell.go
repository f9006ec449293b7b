// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"net/rpc"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/acceptance/ends"
)

const sshPort = 22

// A shell is an SSH connection to an instance.
type shell struct{ *ssh.Client }

// connect connects to an instance, which may still be booting. When ctx is done, the connection closes.
func connect(
	ctx context.Context, addr netip.Addr, user string, m *madeObjects, wait func(context.Context) error,
) (*shell, error) {
	c := &ssh.ClientConfig{User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(m.caller)},
		HostKeyCallback:   ssh.FixedHostKey(m.host),
		HostKeyAlgorithms: []string{m.host.Type()}, Timeout: 10 * time.Second}
	for end := time.Now().Add(bootPatience); ; {
		s, err := dial(ctx, addr, c)
		if err == nil {
			return s, nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("SSH to %s@%s fails for %v: check -from, -user and the firewalls on the way: %w",
				user, addr, bootPatience, err)
		}
		if err := wait(ctx); err != nil {
			return nil, err
		}
	}
}

func dial(ctx context.Context, addr netip.Addr, c *ssh.ClientConfig) (*shell, error) {
	to := netip.AddrPortFrom(addr, sshPort).String()
	conn, err := (&net.Dialer{Timeout: c.Timeout}).DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	transport, channels, requests, err := ssh.NewClientConn(conn, to, c)
	if err != nil {
		stop()
		return nil, errors.Join(err, conn.Close())
	}
	_ = conn.SetDeadline(time.Time{})
	return &shell{ssh.NewClient(transport, channels, requests)}, nil
}

// asRoot returns a shell command that runs the given command as root, by sudo(8) if the SSH user is not root.
func asRoot(command string) string {
	quoted := "'" + strings.ReplaceAll(command, "'", `'\''`) + "'"
	return `if [ "$(id -u)" = 0 ]; then exec sh -ec ` + quoted + `; else exec sudo -n sh -ec ` + quoted + `; fi`
}

// run runs a command as root, and returns the output of the command. An error also contains this output. stdin may be
// nil.
func (s *shell) run(command string, stdin io.Reader) (string, error) {
	session, err := s.NewSession()
	if err != nil {
		return "", err
	}
	defer session.Close()
	session.Stdin = stdin
	out, err := session.CombinedOutput(asRoot(command))
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", command, err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// putFile copies a file to the instance, and makes it executable.
func (s *shell) putFile(file, to string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = s.run("cat >"+to+" && chmod 755 "+to, f)
	return err
}

// putTree copies the regular files below a directory of this machine to a directory of the instance.
func (s *shell) putTree(dir, to string) error {
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		err := addTree(t, os.DirFS(dir))
		w.CloseWithError(errors.Join(err, t.Close()))
	}()
	_, err := s.run("mkdir -p "+to+" && tar -C "+to+" -xf -", r)
	return errors.Join(err, r.Close())
}

// addTree adds the regular files of a file system to an archive. The installation makes its own symbolic links.
func addTree(t *tar.Writer, files fs.FS) error {
	return fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		if err := t.WriteHeader(&tar.Header{Name: path, Mode: int64(fi.Mode().Perm()), Size: fi.Size()}); err != nil {
			return err
		}
		f, err := files.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(t, f)
		return err
	})
}

// A client calls the methods of an ends.Node on an instance.
type client struct {
	rpc    *rpc.Client
	ctx    context.Context
	stderr *tail // the end of what the program and the plugins have printed to standard error
}

// startProgram starts a program as root, and returns a client whose connection is the program's standard input and
// output.
func (s *shell) startProgram(ctx context.Context, program string) (*client, error) {
	session, err := s.NewSession()
	if err != nil {
		return nil, err
	}
	stdin, err := session.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := session.StdoutPipe()
	if err != nil {
		return nil, err
	}
	said := &tail{}
	session.Stderr = said
	if err := session.Start(asRoot("exec " + program)); err != nil {
		return nil, err
	}
	return &client{rpc.NewClient(pipe{stdout, stdin}), ctx, said}, nil
}

// A tail keeps the end of the text that is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	const most = 4 << 10
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-most):]
	return len(b), nil
}

func (t *tail) takeText() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(string(t.text))
	t.text = nil
	return text
}

// A pipe is a connection over the standard input and output of a program.
type pipe struct {
	io.Reader
	io.WriteCloser
}

// callPatience is how long a call may take. An ADD may wait for a new ENI.
const callPatience = 3 * time.Minute

// call calls a method of the ends.Node. An error also contains what the program and the plugins have written to
// standard error during the call.
func (c *client) call(method string, args, reply any) error {
	c.stderr.takeText()
	select {
	case done := <-c.rpc.Go(ends.Name+"."+method, args, reply, make(chan *rpc.Call, 1)).Done:
		if said := c.stderr.takeText(); done.Error != nil && said != "" {
			return fmt.Errorf("%w\n%s", done.Error, said)
		}
		return done.Error
	case <-time.After(callPatience):
		return errors.New(method + ": no answer of the instance for " +
			strconv.Itoa(int(callPatience.Seconds())) + " s")
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
}
