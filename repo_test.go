// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpc

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s"

// arrows says which package may import which of ours. Tests may import more: the
// simulators and nltest are for them.
var arrows = map[string]string{
	"":                "",
	"aws":             "",
	"nl":              "nl/bpf",
	"nl/bpf":          "",
	"codec":           "",
	"codec/codectest": "codec",
	"registry":        "codec",
	"plugin":          "codec",
	"plugin/ipvlan":   "plugin nl codec",
	"unnumbered-ptp":  "plugin nl codec",
	"ipam/lease":      "plugin nl registry codec", // and not aws: it is the warm path
	"ipam":            "ipam/lease plugin aws nl registry",
	"plugin/chain":    "plugin plugin/ipvlan unnumbered-ptp ipam/lease codec",                      // and not ipam, which brings the SDK
	"tool":            "ipam ipam/lease plugin/chain plugin/ipvlan unnumbered-ptp aws nl registry", // the plugins for their configurations: validate
	"aws/ec2sim":      "",
	"aws/vpcsim":      "aws/ec2sim nl",
	"nl/nltest":       "nl",
	"nl/nltest/trace": "",
	"packaging":       "",
	"packaging/sbom":  "",

	"ipam/cni-ipvlan-vpc-k8s-ipam":                     "plugin ipam",
	"plugin/ipvlan/cni-ipvlan-vpc-k8s-ipvlan":          "plugin plugin/ipvlan",
	"unnumbered-ptp/cni-ipvlan-vpc-k8s-unnumbered-ptp": "plugin unnumbered-ptp",
	"plugin/chain/cni-ipvlan-vpc-k8s":                  "plugin plugin/chain",
	"tool/cni-ipvlan-vpc-k8s-tool":                     "tool",
	"aws/vpcsim/demo":                                  "aws/vpcsim aws/vpcsim/paths aws/ec2sim nl",
	"aws/vpcsim/paths":                                 "aws/vpcsim aws/vpcsim/kubeproxy aws/ec2sim nl",
	"aws/vpcsim/bench":                                 "aws/vpcsim aws/ec2sim nl",
	"aws/vpcsim/bench/noop":                            "",
	"aws/vpcsim/sim":                                   "aws/vpcsim aws/vpcsim/paths",
	"aws/vpcsim/kubeproxy":                             "nl",
	"aws/vpcsim/cri":                                   "",
}

// owners are the sole importers of a dependency, by the beginning of its path.
var owners = map[string][]string{
	"github.com/vishvananda/":                   {"nl"},
	"github.com/google/nftables":                {"nl"},
	"github.com/gofrs/flock":                    {"registry"},
	"github.com/aws/":                           {"aws"},
	"github.com/urfave/cli":                     {"tool"},
	"github.com/containernetworking/cni/libcni": {"aws/vpcsim/paths", "aws/vpcsim/bench"},
}

// forbidden are packages that cost a plugin more than they give.
var forbidden = map[string]string{
	"github.com/containernetworking/cni/pkg/invoke":   "links OpenTelemetry and net/http into a plugin",
	"github.com/containernetworking/plugins/pkg/ip":   "links go-iptables and knftables",
	"github.com/containernetworking/plugins/pkg/ipam": "links OpenTelemetry and net/http",
	"github.com/aws/aws-sdk-go-v2/config":             "costs every ADD a millisecond",
}

// sizes are the most MB (10^6 bytes) that a program may have, stripped.
var sizes = map[string]float64{
	"ipam/cni-ipvlan-vpc-k8s-ipam":                     10,
	"plugin/ipvlan/cni-ipvlan-vpc-k8s-ipvlan":          4,
	"unnumbered-ptp/cni-ipvlan-vpc-k8s-unnumbered-ptp": 4,
	"plugin/chain/cni-ipvlan-vpc-k8s":                  5,
	"tool/cni-ipvlan-vpc-k8s-tool":                     16,
}

type pkg struct {
	ImportPath, Dir, Name string
	Imports, GoFiles      []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Dir,Name,Imports,GoFiles", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	var ps []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p pkg
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		p.ImportPath = strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		ps = append(ps, p)
	}
	return ps
}

func TestRepoArrows(t *testing.T) {
	for _, p := range packages(t) {
		may, ok := arrows[p.ImportPath]
		if !ok {
			t.Errorf("package %q is not on the map: doc.go and this test say what it may import", p.ImportPath)
		}
		for _, imp := range p.Imports {
			if ours, ok := strings.CutPrefix(imp, module+"/"); ok && !slices.Contains(strings.Fields(may), ours) {
				t.Errorf("%s imports %s: there is no such arrow", p.ImportPath, ours)
			}
			for prefix, only := range owners {
				if strings.HasPrefix(imp, prefix) && !slices.Contains(only, p.ImportPath) {
					t.Errorf("%s imports %s: only %v may", p.ImportPath, imp, only)
				}
			}
			if why, ok := forbidden[imp]; ok {
				t.Errorf("%s imports %s, which %s", p.ImportPath, imp, why)
			}
		}
	}
}

// TestRepoPackageDocs wants one package comment per package, in the file that bears its name.
func TestRepoPackageDocs(t *testing.T) {
	for _, p := range packages(t) {
		var documented []string
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if f.Doc != nil {
				documented = append(documented, file)
			}
		}
		want := p.Name + ".go"
		if p.ImportPath == "" {
			want = "doc.go"
		}
		if len(documented) != 1 || documented[0] != want {
			t.Errorf("%s: package comment in %v, want it in %s", p.ImportPath, documented, want)
		}
	}
}

// TestRepoExportedDocs wants a comment on each exported name.
func TestRepoExportedDocs(t *testing.T) {
	for _, p := range packages(t) {
		for _, file := range p.GoFiles {
			name := path.Join(p.ImportPath, file)
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.IsExported() && fn.Doc == nil && !wellKnown(fn) {
					t.Errorf("%s: %s has no comment", name, fn.Name.Name)
				}
				if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE && g.Doc == nil {
					for _, s := range g.Specs {
						if ts := s.(*ast.TypeSpec); ts.Name.IsExported() && ts.Doc == nil {
							t.Errorf("%s: type %s has no comment", name, ts.Name.Name)
						}
					}
				}
			}
		}
	}
}

// wellKnown are methods whose names say all: those of error, fmt.Stringer and
// errors, and those of an Object, which nl.Object documents. A method of a type that
// is not exported is not, either.
func wellKnown(fn *ast.FuncDecl) bool {
	if fn.Recv == nil {
		return false
	}
	own := strings.TrimPrefix(types.ExprString(fn.Recv.List[0].Type), "*")
	return !ast.IsExported(own) ||
		slices.Contains([]string{"Error", "Unwrap", "Is", "String", "Add", "Del", "Check", "Close", "ServeHTTP"}, fn.Name.Name)
}

func TestRepoSPDX(t *testing.T) {
	const header = "// SPDX-License-Identifier: Apache-2.0\n// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors\n\n"
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (p == ".git" || p == ".cache" || p == "bin") {
			return fs.SkipDir
		}
		if filepath.Ext(p) != ".go" {
			return nil
		}
		b, err := os.ReadFile(p)
		if err == nil && !bytes.HasPrefix(b, []byte(header)) {
			t.Errorf("%s does not begin with\n%s", p, header)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRepoSizes wants the programs in bin, which make builds first.
func TestRepoSizes(t *testing.T) {
	for prog, most := range sizes {
		fi, err := os.Stat(filepath.Join("bin", path.Base(prog)))
		if err != nil {
			t.Errorf("%v: run make build", err)
			continue
		}
		if got := float64(fi.Size()) / 1e6; got > most {
			t.Errorf("%s has %.1f MB, want at most %v", path.Base(prog), got, most)
		}
	}
}
