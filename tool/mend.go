// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"

	"github.com/urfave/cli/v2"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

func mend() *cli.Command {
	return &cli.Command{
		Name:  "mend",
		Usage: "Put back what serves all pods of the node, and was removed",
		Description: `For whatever flushes the ruleset of nftables: nftables.service calls it, by a
drop-in. It puts back what the next ADD would: the table of nftables, the rules
and sysctls, and the routes to pods that have gone with the node's address, or
as IPv6 was disabled on the node; only where there are pods of a network that
the configuration names. It says what that was, answers nothing, and asks
neither EC2 nor metadata. registry-gc begins with the same. If it could not put
back all, the exit status is 1.`,
		Flags: []cli.Flag{configFlag()},
		Action: func(c *cli.Context) error {
			if err := needRoot(); err != nil {
				return err
			}
			mended, err := mendNode(c.String("config"))
			return errors.Join(err, answer(c, map[string]any{"mended": mended}, func(io.Writer) {}))
		},
	}
}

// A paired network is one whose pods get a veth pair of ours.
type paired struct {
	name     string
	file     string // its conflist
	pair     ptp.Config
	ipam     json.RawMessage // ipam's configuration; nil where another plugin gives the addresses
	firewall bool            // its chain has the plugin of that name, which lets each pod's address pass
}

// pairedNetworks reads those of a conflist, or of all in a folder, of which the first of a
// name counts. Of those that have a mistake it returns an error beside the others.
func pairedNetworks(path string) ([]paired, error) {
	files, err := conflistsAt(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // so there are no pods of ours
	}
	var all []paired
	seen := map[string]bool{}
	failed := err
	for _, f := range files {
		list, err := readConflist(f)
		if raw := list.plugin(typePTP); err == nil && raw != nil && !seen[list.Name] {
			n := paired{name: list.Name, file: f, ipam: list.plugin(typeIPAM), firewall: list.chains("firewall")}
			seen[n.name] = true // with a mistake or not: the next one of its name is an old one
			if err = json.Unmarshal(raw, &n.pair); err == nil {
				err = n.pair.Validate()
			}
			if err == nil {
				all = append(all, n)
			} else {
				err = fmt.Errorf("%s: %w", f, err)
			}
		}
		failed = errors.Join(failed, err)
	}
	return all, failed
}

// mendNode puts back what the node has lost of what serves all pods, and says what that
// was. It waits for nobody.
func mendNode(config string) ([]string, error) {
	did := []string{}
	host, err := nl.Host()
	if err != nil {
		return did, err
	}
	defer host.Close()
	networks, failed := pairedNetworks(config)
	for _, n := range networks {
		w, err := ptp.Mend(host, n.name, n.pair)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("network %s: %w", n.name, err))
		}
		for _, s := range w {
			did = append(did, brieflyOf(s.Object))
			slog.Info("put back what serves all pods, and was removed", "object", did[len(did)-1])
		}
		pods, err := rejoin(host, n)
		failed = errors.Join(failed, err)
		for _, pod := range pods {
			did = append(did, "IPv6 of "+pod)
			slog.Info("put back what the node has lost of a pod's IPv6", "pod", pod)
		}
	}
	return did, failed
}

// brieflyOf is the command that adds an object, of a table without what is in it.
func brieflyOf(o nl.Object) string {
	if t, is := o.(nl.Table); is {
		return "nft table " + t.Family + " " + t.Name
	}
	return o.String()
}
