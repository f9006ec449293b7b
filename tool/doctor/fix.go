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

// runRepair is what an operator can do about a lost object.
var runRepair = "run " + cli.Name + " repair (cni-gc.timer also runs it)"

// correctSetting is what an operator must also do about a sysctl with a wrong value.
const correctSetting = ". Then correct the program or the file in /etc/sysctl.d that sets another value"

func (p *Node) objectFix(o nl.Object) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		return o.String(), nl.Wiring{{NS: p.pool.Host, Object: o}}.Add()
	}
}

// fileFix returns a fix that writes a file. The fix appends the text "note" to its message.
func (p *Node) fileFix(name, text, note string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		file := p.pathOf(name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return "", err
		}
		return "wrote " + file + note, cli.ReplaceFile(file, []byte(text), 0o644)
	}
}
