// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/template"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

//go:embed egress.yaml
var egressYAML string

// manifestTemplate is the parsed egress.yaml. newManifest accepts only names that Kubernetes allows. So the template
// writes a name (type yamlName) with quotes only if YAML would misread the name. The template writes all other values
// as JSON. Like the regular expressions of this package, the template is parsed only at its first use.
var manifestTemplate = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("egress").Funcs(template.FuncMap{"json": inlineJSON}).Parse(egressYAML))
})

// pauseImage is the default image of routers. Its program only sleeps, because the kernel forwards the packets.
const pauseImage = "registry.k8s.io/pause:3.10"

func egressFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "manifest", Usage: "print the objects of Kubernetes for the routers of the egress " +
			"`NAME`"},
		&cli.StringFlag{Name: "routers", DefaultText: "the first of the configuration",
			Usage: "with --manifest: `NAMESPACE` of the routers"},
		&cli.IntFlag{Name: "replicas", Value: 2, Usage: "with --manifest: `N` routers"},
		&cli.StringSliceFlag{Name: "address",
			Usage: "with --manifest: a router with this `ADDRESS` or ADDRESS@ZONE; may be given again"},
		&cli.StringFlag{Name: "image", Value: pauseImage, Usage: "with --manifest: `IMAGE` of the routers"},
		&cli.StringFlag{Name: "probe",
			Usage: "with --manifest: a router is ready while it reaches `URL`; the image needs curl and sleep"},
		&cli.StringSliceFlag{Name: "gateways", Usage: "of a new egress: `ADDRESSES` for the routers' Service"},
		&cli.StringSliceFlag{Name: "destinations", Usage: "of a new egress: `CIDRS`"},
		&cli.StringSliceFlag{Name: "except", Usage: "of a new egress: `CIDRS` of its destinations that packets reach " +
			"without routers"},
		&cli.StringSliceFlag{Name: "namespaces", Usage: "of a new egress: `NAMESPACES` of its clients"},
		&cli.StringSliceFlag{Name: "clients", Usage: "of a new egress: `CIDRS` of its clients"},
	}
}

// newEgressFlags are the flags that describe an egress that the configuration does not have yet. They have the names of
// the keys of an egress.
var newEgressFlags = []string{"gateways", "destinations", "except", "namespaces", "clients"}

// A manifest has the values that the template egress.yaml writes.
type manifest struct {
	Name, Namespace  yamlName
	Gateways         []string
	Families         []string
	Port             int
	Image, Probe     string
	Workloads        []workload
	RouterAnnotation string
	Lacks            []missingPart
}

// A workload runs routers: a Deployment, or a StatefulSet with one router that has an address of its own.
type workload struct {
	Kind     string
	Name     yamlName
	Replicas int
	IP, Zone string
}

// A missingPart is a part that the conflist lacks. Means says where and why an operator must add the part. Lines is the
// text of the part.
type missingPart struct {
	Means string   `json:"means"`
	Lines []string `json:"lines"`
}

func printManifest(c *cli.Context, networks []conf.NetworkEgress, conflists *conf.Conflists) error {
	m, err := newManifest(c, networks, conflists)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := manifestTemplate().Execute(&b, m); err != nil {
		return err
	}
	return cli.Answer(c, map[string]any{"manifest": b.String(), "lacks": cli.List(m.Lacks)},
		func(w io.Writer) { _, _ = b.WriteTo(w) }) // ignore the error: w is in memory
}

// newManifest returns the manifest of the egress that --manifest names. This egress is in the configuration, or other
// flags describe it.
func newManifest(c *cli.Context, networks []conf.NetworkEgress, conflists *conf.Conflists) (*manifest, error) {
	name := c.String("manifest")
	m := &manifest{Name: yamlName(name), Image: c.String("image"), Probe: c.String("probe"),
		RouterAnnotation: egress.RouterAnnotation}
	n, e, err := m.findEgress(c, name, networks, conflists)
	if err != nil {
		return nil, err
	}
	namespace, err := routersNamespace(c, e)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{name, namespace} {
		if !dnsLabel().MatchString(name) {
			return nil, cli.Misuse(c, "%q is no name of a namespace or of an egress. Want at most 40 small letters, "+
				"digits and hyphens, with a letter first, and no hyphen last", name)
		}
	}
	m.Namespace, m.Port = yamlName(namespace), n.UDPPort()
	for _, gw := range e.Gateways {
		a := netip.MustParseAddr(gw) // does not panic: Validate has already parsed gw
		m.Gateways, m.Families = append(m.Gateways, a.String()), append(m.Families, fmt.Sprint(nl.FamilyOf(a)))
	}
	if c.IsSet("probe") && !c.IsSet("image") {
		return nil, cli.Misuse(c, "--probe needs --image: %s has no curl", pauseImage)
	}
	if err := m.addWorkloads(c); err != nil {
		return nil, err
	}
	return m, m.addMissing(c, n, e)
}

// A yamlName is a name in YAML. String adds quotes if YAML would read the name as a boolean or as null.
type yamlName string

func (w yamlName) String() string {
	if slices.Contains([]string{"y", "n", "yes", "no", "on", "off", "true", "false", "null"}, string(w)) {
		return inlineJSON(string(w))
	}
	return string(w)
}

// dnsLabel matches the names that namespaces, Services and labels may have (RFC 1123). But it matches at most 40
// characters instead of 63, because addWorkloads appends an address to the name of the egress.
var dnsLabel = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$`)
})

// findEgress returns the egress that has this name, and its network. If the flags describe a new egress, findEgress
// chooses a network, and appends the lines for the conflist to m.Lacks.
func (m *manifest) findEgress(c *cli.Context, name string, networks []conf.NetworkEgress, conflists *conf.Conflists) (
	n conf.NetworkEgress, e egress.Egress, err error,
) {
	set := slices.DeleteFunc(slices.Clone(newEgressFlags), func(key string) bool { return !c.IsSet(key) })
	var known []string
	for _, n := range networks {
		if e, is := n.Egresses[name]; is {
			if len(set) > 0 {
				return n, e, cli.Misuse(c, "--%s is only for a new egress, but %s already has the egress %s",
					set[0], n.List.File, name)
			}
			return n, e, nil
		}
		for other := range n.Egresses {
			known = append(known, other)
		}
	}
	if len(set) == 0 {
		slices.Sort(known)
		return n, e, cli.Misuse(c, "no egress has the name %q. The configuration has these egresses: %s. For a new "+
			"egress, add --gateways, --destinations and --namespaces", name, joinWords(known, "none"))
	}
	if n, err = newEgressNetwork(conflists, networks); err != nil {
		return n, e, err
	}
	e = egress.Egress{Gateways: c.StringSlice("gateways"), Destinations: c.StringSlice("destinations"),
		Except: c.StringSlice("except"), Namespaces: c.StringSlice("namespaces"), Clients: c.StringSlice("clients"),
		Routers: []string{defaultRouters(c)}}
	n.Egresses = map[string]egress.Egress{name: e}
	if err = n.Validate(); err != nil {
		return n, e, cli.Misuse(c, "%w", err)
	}
	m.Lacks = append(m.Lacks, newEgress(n, name, e))
	return n, e, nil
}

// newEgress returns the part that a conflist needs for a new egress.
func newEgress(n conf.NetworkEgress, name string, e egress.Egress) missingPart {
	text := fmt.Sprintf("%s: %s", inlineJSON(name), egressJSON(e))
	means := "The conflist of all nodes needs these lines in the key \"egress\", before the routers start:"
	if n.List.Plugin(conf.TypeEgress) == nil {
		text = fmt.Sprintf("{\"type\": %q, \"egress\": {%s}}", conf.TypeEgress, text)
		means = "The conflist of all nodes needs this plugin as its last plugin, before the routers start:"
	}
	return missingPart{means, strings.Split(text, "\n")}
}

// newEgressNetwork returns the network for a new egress. This is the first network that already has an egress. If no
// network has one, it is the first network that can have one.
func newEgressNetwork(conflists *conf.Conflists, networks []conf.NetworkEgress) (conf.NetworkEgress, error) {
	if len(networks) > 0 {
		return networks[0], nil
	}
	lists := conflists.Networked()
	if len(lists) == 0 {
		_, err := conflists.All()
		return conf.NetworkEgress{}, err
	}
	return conf.EgressOf(lists[0])
}

// defaultRouters returns the namespace for the routers of a new egress.
func defaultRouters(c *cli.Context) string {
	if c.IsSet("routers") {
		return c.String("routers")
	}
	return "egress"
}

func egressJSON(e egress.Egress) string {
	lines := []string{}
	for _, key := range []struct {
		name   string
		values []string
	}{{"gateways", e.Gateways}, {"destinations", e.Destinations}, {"except", e.Except}, {"namespaces", e.Namespaces},
		{"routers", e.Routers}, {"clients", e.Clients}} {
		if len(key.values) > 0 {
			lines = append(lines, fmt.Sprintf("  %q: %s", key.name, inlineJSON(key.values)))
		}
	}
	return "{\n" + strings.Join(lines, ",\n") + "\n}"
}

// inlineJSON returns v as JSON in one line. YAML can read JSON.
func inlineJSON(v any) string {
	b, _ := json.Marshal(v) // ignore the error: JSON can encode texts and lists of texts
	return strings.ReplaceAll(string(b), `","`, `", "`)
}

// routersNamespace returns the namespace of the routers, from the flag --routers. Without the flag, the namespace is
// the first name without a wildcard in the egress's field Routers.
func routersNamespace(c *cli.Context, e egress.Egress) (string, error) {
	if c.IsSet("routers") {
		return c.String("routers"), nil
	}
	for _, name := range e.Routers {
		if !strings.HasSuffix(name, "*") {
			return name, nil
		}
	}
	return "", cli.Misuse(c, "want --routers NAMESPACE, because the key \"routers\" of the egress (%s) has no "+
		"namespace without a wildcard", joinWords(e.Routers, "none"))
}

// addWorkloads adds the workloads to the manifest: a StatefulSet for each --address, or one Deployment if there is no
// --address.
func (m *manifest) addWorkloads(c *cli.Context) error {
	addresses := c.StringSlice("address")
	if len(addresses) == 0 {
		m.Workloads = []workload{{Kind: "Deployment", Name: m.Name, Replicas: c.Int("replicas")}}
		if c.Int("replicas") < 1 {
			return cli.Misuse(c, "--replicas %d: want 1 or more", c.Int("replicas"))
		}
		return nil
	}
	if c.IsSet("replicas") {
		return cli.Misuse(c, "--replicas is not for --address, because each --address is one router")
	}
	for _, text := range addresses {
		ip, zone, _ := strings.Cut(text, "@")
		a, err := netip.ParseAddr(ip)
		if err != nil || a.Zone() != "" {
			return cli.Misuse(c, "--address %s: want ADDRESS or ADDRESS@ZONE, for example 10.0.9.10 or "+
				"10.0.9.10@us-east-1a", text)
		}
		name := strings.TrimRight(string(m.Name)+"-"+strings.NewReplacer(".", "-", ":", "-").Replace(a.String()), "-")
		if len(name) > maxStatefulSetName {
			return cli.Misuse(c, "%s: want a shorter name of the egress, because the name of a StatefulSet has at "+
				"most %d characters", name, maxStatefulSetName)
		}
		m.Workloads = append(m.Workloads, workload{"StatefulSet", yamlName(name), 1, a.String(), zone})
	}
	return nil
}

// maxStatefulSetName is the greatest length of the name of a StatefulSet. Kubernetes writes the name, a hyphen and a
// hash of 10 characters into a label, which has at most 63 characters.
const maxStatefulSetName = 52

// addMissing appends to m.Lacks the parts that the conflist lacks for the routers of the manifest.
func (m *manifest) addMissing(c *cli.Context, n conf.NetworkEgress, e egress.Egress) error {
	if !e.HasRouters(string(m.Namespace)) {
		m.Lacks = append(m.Lacks, missingPart{fmt.Sprintf("The conflist of all nodes needs this namespace in "+
			"the key \"routers\" of the egress %s, before routers start:", m.Name),
			[]string{fmt.Sprintf(`"routers": %s`, inlineJSON(append(slices.Clone(e.Routers), string(m.Namespace))))}})
	}
	chosen := m.Workloads[0].IP != ""
	if chosen && n.List.IPAM == nil {
		return cli.Misuse(c, "--address: in %s, no plugin of this project gives addresses, so no pod can choose an "+
			"address",
			n.List.File)
	}
	if chosen && !n.MayChoose(string(m.Namespace)) {
		m.Lacks = append(m.Lacks, missingPart{"The conflist of all nodes needs this in the key \"requests\", so that " +
			"routers may choose their addresses:",
			[]string{fmt.Sprintf(`{"namespaces": [%q], "ips": true, "takeover": true}`, string(m.Namespace))}})
	}
	if chosen && !n.PodAnnotations() {
		m.Lacks = append(m.Lacks, missingPart{"The conflist of all nodes needs this, so that the plugin gets the " +
			"annotations of pods:",
			[]string{`"capabilities": {"io.kubernetes.cri.pod-annotations": true}`}})
	}
	return nil
}
