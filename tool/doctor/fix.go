// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"os"
	"path/filepath"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

func (p *Node) objectFix(o nl.Object) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		return o.String(), nl.Wiring{{NS: p.pool.Host, Object: o}}.Add()
	}
}

// fileFix returns a fix that writes a file. The argument note is a text that the fix appends to its message.
func (p *Node) fileFix(name, text, note string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		file := p.pathOf(name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return "", err
		}
		return "wrote " + file + note, cli.ReplaceFile(file, []byte(text), 0o644)
	}
}
