// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

func registryList() *cli.Command {
	return &cli.Command{
		Name:  "registry-list",
		Usage: "List all known free IPs in the internal registry",
		Action: func(c *cli.Context) error {
			s, err := viewRegistry()
			if err != nil {
				return err
			}
			var rows []freeRow
			for a, since := range s.Free.All() {
				row := freeRow{Addr: a, ReleasedOn: moment(since)}
				row.ENI, _ = s.ENIOf(a)
				rows = append(rows, row)
			}
			return table(c, rows)
		},
	}
}

// A freeRow is an address that is free.
type freeRow struct {
	Addr       netip.Addr `json:"ip"`
	ReleasedOn *time.Time `json:"released_on" head:"-"` // nil: never used
	ENI        string     `json:"eni" head:"-"`         // empty if the registry does not know it yet
}

// viewRegistry reads this node's registry, for which anybody is good enough whom the
// files' modes let in.
func viewRegistry() (*registry.State, error) {
	r, err := registry.Open(registry.Dir())
	if err != nil {
		return nil, rooted(err)
	}
	s, err := r.View()
	return s, rooted(err)
}

// rooted says what to do about an error of permissions.
func rooted(err error) error {
	if !errors.Is(err, fs.ErrPermission) || needRoot() == nil {
		return err
	}
	return fmt.Errorf("%w: %w", needRoot(), err)
}
