// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/kube"
)

func advertise() *cli.Command {
	return &cli.Command{
		Name:  "advertise",
		Usage: "Tell the scheduler for how many pods this node has or can get addresses",
		Description: `For a systemd timer. The command sets the extended resource ` + Resource + `
of this node. For this, it sends a PATCH of the node's status to the API server, with the
kubelet's credentials. It makes no other kind of request to the API server. If a pod asks
for 1 of the resource, the scheduler chooses only a node that has an address left for the
pod: see docs/scheduler.md.

The number of the resource is a total. The scheduler subtracts the requests of pods from
this number. The number counts the addresses of pods, the free and cooling addresses, and
the addresses that the node can still get from EC2. From this sum, the command subtracts
the largest number of addresses that cooled at the same time within --window. The
instance type, the configuration and the subnets limit how many addresses the node can
get. The command asks EC2 once an hour how many free addresses the subnets have. If the
subnets limit the number, the command asks every ten minutes, and after each growth. The
result is never below the number of addresses that pods have.

This resource is for the pool "default". Each other pool has a resource of its own,
` + Resource + `-POOL.

If the command cannot read the registry or the configuration, or does not know the
instance, the command fails. The node then still advertises its old numbers.

With --feature-file, the command does not call the API server. It writes the numbers into
a file for the local source of node-feature-discovery:

    ` + Name + ` advertise --feature-file=/etc/kubernetes/node-feature-discovery/features.d/cni-ipvlan-vpc-k8s` +
			cli.JSON("[] resource number leased free more cooling reserved"),
		Flags: []cli.Flag{
			conf.Flag(),
			&cli.StringFlag{Name: "kubeconfig", DefaultText: "where kubelets have it",
				Usage: "use the kubelet's credentials of `FILE`"},
			&cli.StringFlag{Name: "node-name", DefaultText: "the name in the kubelet's certificate, or the host name",
				Usage: "the node's `NAME` in Kubernetes"},
			&cli.StringFlag{Name: "feature-file",
				Usage: "write the numbers to `FILE` for node-feature-discovery, and not to the API server"},
			&cli.DurationFlag{Name: "window", Value: 2 * time.Minute,
				Usage: "look back over `TIME`, and subtract the highest number of addresses that cooled at one moment"},
			&cli.BoolFlag{Name: "dry-run", Usage: "print the numbers, and change nothing"},
		},
		Action: func(c *cli.Context) error {
			if c.Duration("window") < 0 {
				return cli.Misuse(c, "--window %v: want 0 or more", c.Duration("window"))
			}
			if err := cli.NeedRoot(); err != nil {
				return err
			}
			r, err := registry.Open(registry.Dir())
			if err != nil {
				return err
			}
			unlock, err := r.Lock(c.Context, "advertise") // without the lock, an older number could replace a newer one
			if err != nil {
				return err
			}
			defer unlock()
			rows, err := offerRows(c)
			if err != nil {
				return fmt.Errorf("the node still advertises its old numbers: %w", err)
			}
			return errors.Join(publishNumbers(c, rows), cli.Table(c, rows))
		},
	}
}

// publishNumbers writes the numbers of the rows into the file of --feature-file. Without this flag, it sends the
// numbers to the API server. With --dry-run, it does nothing.
func publishNumbers(c *cli.Context, rows []offerRow) error {
	switch file := c.String("feature-file"); {
	case c.Bool("dry-run"):
		return nil
	case file != "":
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		return cli.WriteFile(file, []byte(featureText(rows)), 0o644)
	}
	return patchNode(c, rows)
}

// patchNode sends the number of each row to the API server. It also removes the node's resources for pools that are no
// longer configured.
func patchNode(c *cli.Context, rows []offerRow) error {
	path := c.String("kubeconfig")
	if path == "" {
		found, ok := kube.Find()
		if !ok {
			return cli.Hint(fmt.Errorf("this node has no kubeconfig of a kubelet: none of %s exists",
				strings.Join(kube.Kubeconfigs, ", ")), "give the kubelet's kubeconfig with --kubeconfig FILE")
		}
		path = found
	}
	client, err := kube.Load(c.Context, path)
	if err != nil {
		return cli.Hint(err, "give the kubelet's kubeconfig with --kubeconfig FILE")
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	node := cmp.Or(c.String("node-name"), client.Node(), strings.ToLower(strings.TrimSpace(host)))
	resources := kube.Resources{}
	for _, r := range rows {
		resources[r.Resource] = &r.Number
	}
	has, err := client.PatchNode(c.Context, node, resources)
	if err != nil {
		return patchError(err, node, path)
	}
	gone := kube.Resources{}
	for name := range has {
		if _, told := resources[name]; !told && (name == Resource || strings.HasPrefix(name, Resource+"-")) {
			gone[name] = nil
		}
	}
	if len(gone) == 0 {
		return nil
	}
	slog.Info("the command removes resources from the node, because the configuration no longer has their pools",
		"resources",
		len(gone))
	_, err = client.PatchNode(c.Context, node, gone)
	return patchError(err, node, path)
}

// patchError adds the node's name to err, the error of a request to the API server. For some errors, it also adds a
// hint. If err is nil, it returns nil.
func patchError(err error, node, kubeconfig string) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("set the resources of the node %s: %w", node, err)
	refusal, _ := errors.AsType[*kube.Refusal](err)
	switch {
	case kube.Untrusted(err):
		return cli.Hint(err, kubeconfig+" trusts another API server; give the kubelet's kubeconfig with --kubeconfig "+
			"FILE")
	case refusal == nil:
		return err
	case refusal.Status == http.StatusNotFound:
		return cli.Hint(err, "give the name that 'kubectl get nodes' shows for this node, with --node-name NAME")
	case refusal.Status == http.StatusForbidden:
		return cli.Hint(err, "a kubelet may change only its own node; give this node's name with --node-name NAME, "+
			"or its kubelet's kubeconfig with --kubeconfig FILE")
	case refusal.Status == http.StatusUnauthorized:
		return cli.Hint(err, "the credentials of "+kubeconfig+" have expired, or are of another cluster; give the "+
			"kubelet's kubeconfig with --kubeconfig FILE")
	}
	return err
}

// featureText returns the text of a file for node-feature-discovery (its customization guide, "Local feature source").
// The directive +no-label makes the next number a feature, but not a label.
func featureText(rows []offerRow) string {
	var b strings.Builder
	fmt.Fprintln(&b, "# By", cli.Program+" advertise, for the NodeFeatureRule of docs/scheduler.md.")
	for _, r := range rows {
		_, name, _ := strings.Cut(r.Resource, "/")
		fmt.Fprintf(&b, "# +no-label\ncni-ipvlan-vpc-k8s.%s=%d\n", name, r.Number)
	}
	return b.String()
}
