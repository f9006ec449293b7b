// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/release"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/doctor"
)

const (
	manifestFile = "manifest.json"
	readmeFile   = "README"
	manifestRoom = 100_000 // bytes for the manifest and the README, and for the data that tar adds
)

const readme = `A support bundle of cni-ipvlan-vpc-k8s: what a node shows of its pods' network.

    cni-tool support-bundle --read THIS-FILE              the findings
    cni-tool support-bundle --read THIS-FILE --html FILE  a page with a picture of the node

manifest.json lists the other files. It also says which parts are missing, and why.
`

// Gather reads all sources of this node and writes a bundle. It fails only if it cannot write the bundle, or if a
// signal ends the command.
func Gather(ctx context.Context, w io.Writer, config, binDir string) (Manifest, error) {
	g := &gathering{allow: newAllowance(), binDir: binDir, lists: conf.Load(config), asked: &doctor.Answers{}}
	g.node, g.unopened = doctor.Open("", config, binDir)
	if g.unopened == nil {
		defer g.node.Close()
		g.host = g.node.Pool().Host
	} else if host, err := nl.Node(); err == nil {
		defer host.Close()
		g.host = host
	}
	g.allow.allowWords(registry.Dir(), binDir, config)
	for _, typ := range conf.Types {
		g.allow.allowWords(filepath.Join(binDir, typ))
	}
	m := Manifest{Format: 1, Made: time.Now().UTC().Truncate(time.Second), Tool: release.Version()}
	files := map[string][]byte{}
	for _, r := range readings {
		s, text := g.readSource(ctx, r)
		if r.share == 0 && s.State != Unread {
			continue // a later reading stores the data of this source
		}
		if text != nil {
			files[r.file] = text
		}
		m.Sources = append(m.Sources, s)
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return m, ctx.Err()
	}
	return m, writeArchive(w, m, files)
}

// readSource makes one reading, and cuts the data to the reading's share of the bundle. If the reading misses its
// deadline, readSource does not wait for the data. It returns the entry for the manifest, and the text of the source's
// file.
func (g *gathering) readSource(ctx context.Context, r reading) (s Source, text []byte) {
	defer cli.Working("read the source " + r.name)()
	began := time.Now()
	s = Source{Name: r.name, File: r.file, State: Whole}
	var v any
	done, err := callWithin(ctx, r.deadline, func(ctx context.Context) (finish, error) { return r.read(g, ctx) })
	if err == nil {
		v, err = done()
	}
	if err == nil && r.share > 0 {
		text, s.Why, err = fittingJSON(v, r.share)
	}
	if s.Took = time.Since(began).Truncate(time.Millisecond).String(); err != nil {
		s.State, s.Why, s.File = Unread, g.allow.keptText(err.Error()), ""
		return s, nil
	}
	if s.Why != "" {
		s.State = Cut
	}
	return s, text
}

// callWithin calls the function f, which may hang in the kernel. After the deadline, callWithin no longer waits for f,
// and returns an error.
func callWithin[T any](ctx context.Context, deadline time.Duration, f func(context.Context) (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	whole := ctx
	ctx, cancel := context.WithTimeout(whole, deadline)
	defer cancel()
	done := make(chan answer, 1)
	go func() {
		v, err := f(ctx)
		done <- answer{v, err}
	}()
	select {
	case a := <-done:
		return a.v, a.err
	case <-ctx.Done():
		var none T
		if err := whole.Err(); err != nil {
			return none, fmt.Errorf("support-bundle ended before this answer: %w", err)
		}
		return none, fmt.Errorf("no answer within %v", deadline)
	}
}

// A cutter is a value that can become smaller. Cut makes the value smaller, and reports whether the value still has
// data.
type cutter interface{ Cut() bool }

// fittingJSON returns the JSON of a value. It cuts the value until the size of the compressed JSON is at most share (in
// bytes). If it has cut the value, the result "why" says so.
func fittingJSON(v any, share int) (text []byte, why string, err error) {
	for {
		if text, err = json.Marshal(v); err != nil {
			return nil, "", err
		}
		size := compressedSize(text)
		if size <= share {
			break
		}
		if why == "" {
			why = fmt.Sprintf("the compressed data of the source has %d bytes, but its share of the bundle is %d bytes",
				size, share)
		}
		if c, can := v.(cutter); !can || !c.Cut() {
			return nil, "", errors.New(why)
		}
	}
	return text, why, nil
}

func compressedSize(text []byte) int {
	var n counter
	z := gzip.NewWriter(&n)
	_, _ = z.Write(text) // a counter does not fail
	_ = z.Close()
	return int(n)
}

type counter int

func (n *counter) Write(b []byte) (int, error) {
	*n += counter(len(b))
	return len(b), nil
}

func writeArchive(w io.Writer, m Manifest, files map[string][]byte) error {
	about, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	var all bytes.Buffer
	z := gzip.NewWriter(&all)
	t := tar.NewWriter(z)
	add := func(name string, text []byte) {
		if err == nil {
			err = t.WriteHeader(&tar.Header{Name: "support-bundle/" + name, Mode: 0o600, Size: int64(len(text)),
				ModTime: m.Made})
		}
		if err == nil {
			_, err = t.Write(text)
		}
	}
	add(readmeFile, []byte(readme))
	add(manifestFile, about)
	for _, s := range m.Sources {
		if text := files[s.File]; text != nil {
			add(s.File, text)
		}
	}
	for _, end := range []io.Closer{t, z} {
		if e := end.Close(); err == nil {
			err = e
		}
	}
	if err != nil {
		return err
	}
	_, err = all.WriteTo(w)
	return err
}
