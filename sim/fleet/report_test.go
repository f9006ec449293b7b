// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/table"
)

// A record has the figures of a phase. TestWhole stores it in a file until all ways have been simulated.
type record struct {
	Bound, Last, P50, P99 time.Duration
	Ran, Pods, Failed     int
	Made, Refused         map[string]int
	Steady                int // pods per second, see steady
}

func (p phase) record() record {
	return record{p.bound, quantile(p.ends, 1), quantile(p.waits, 0.5), quantile(p.waits, 0.99), len(p.ends), p.pods,
		p.failed, p.made, p.refused, p.steady()}
}

// steady returns how many pods per second started, from the time when a quarter of the pods ran to the time when three
// quarters ran.
func (p phase) steady() int {
	from, to := quantile(p.ends, 0.25), quantile(p.ends, 0.75)
	if to <= from {
		return 0
	}
	return int(float64(len(p.ends)) / 2 / (to - from).Seconds())
}

// A played has the stored figures of one way.
type played struct {
	Nodes, Pods             int
	Burst, Ramp, Roll, Hour record
	Idle                    int
}

// save reads the stored figures of a way, changes them, and stores them again.
func save(dir, way string, change func(*played)) error {
	all, err := load(dir, way)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	change(&all)
	b, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, way+".json"), b, 0o644))
}

func load(dir, way string) (p played, err error) {
	b, err := os.ReadFile(filepath.Join(dir, way+".json"))
	if err != nil {
		return p, err
	}
	return p, json.Unmarshal(b, &p)
}

// seconds formats a duration in seconds. Durations of less than ten seconds have one decimal place.
func seconds(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.1f", d.Seconds())
	}
	return fmt.Sprintf("%.0f", d.Seconds())
}

// last returns the time when the last pod ran. If some pods did not run, it returns the percentage of the pods that
// ran.
func (r record) last() string {
	if r.Ran < r.Pods {
		return fmt.Sprintf("%d %% ran", 100*r.Ran/r.Pods)
	}
	return seconds(r.Last)
}

// over returns the ratio of the time when the last pod ran to the bound.
func (r record) over() string {
	if r.Bound == 0 || r.Ran < r.Pods {
		return ""
	}
	return fmt.Sprintf("%.2f", r.Last.Seconds()/r.Bound.Seconds())
}

func (r record) figures() []string {
	return []string{seconds(r.Bound), r.last(), r.over(), seconds(r.P50), seconds(r.P99), fmt.Sprint(sum(r.Made)),
		fmt.Sprint(sum(r.Refused))}
}

var columns = []string{"bound", "last pod", "x", "p50", "p99", "calls", "throttled"}

// tables returns all tables in Markdown.
func tables(dir string) (string, error) {
	burst := table.Table{append([]string{"all at once"}, columns...)}
	ramp := table.Table{append([]string{"as RunInstances lets them"}, columns...)}
	roll := table.Table{append(append([]string{"every pod replaced"}, columns...), "pods/s")}
	hour := table.Table{{"a throttled hour", "replaced", "p50", "p99", "throttled", "idle at the end"}}
	calls := table.Table{{"calls, all at once"}}
	actions, results, size := map[string]bool{}, map[string]played{}, played{}
	for _, w := range ways {
		p, err := load(dir, w.name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		if p.Ramp.Pods > 0 {
			ramp = append(ramp, append([]string{w.name}, p.Ramp.figures()...))
		}
		if p.Burst.Pods == 0 {
			continue
		}
		size, results[w.name] = p, p
		burst = append(burst, append([]string{w.name}, p.Burst.figures()...))
		calls[0] = append(calls[0], w.name)
		for a := range p.Burst.Made {
			actions[a] = true
		}
		if p.Roll.Pods == 0 {
			continue
		}
		roll = append(roll, append(append([]string{w.name}, p.Roll.figures()...), fmt.Sprint(p.Roll.Steady)))
		hour = append(hour, []string{w.name, fmt.Sprintf("%d %%", 100*p.Hour.Ran/max(p.Hour.Pods, 1)),
			seconds(p.Hour.P50), seconds(p.Hour.P99),
			fmt.Sprint(sum(p.Hour.Refused)), fmt.Sprint(p.Idle)})
	}
	for _, a := range slices.Sorted(maps.Keys(actions)) {
		row := []string{a}
		for _, name := range calls[0][1:] {
			row = append(row, fmt.Sprint(results[name].Burst.Made[a]))
		}
		calls = append(calls, row)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "\n%d nodes with %d pods each. Times are in seconds.\n", size.Nodes, size.Pods)
	for _, t := range []table.Table{burst, ramp, roll, hour, calls} {
		if len(t) > 1 {
			text.WriteString("\n" + t.String())
		}
	}
	return text.String(), nil
}

// rewrite replaces tables in a document. These are the tables that the command "make TARGET" writes, where TARGET is
// the argument target.
func rewrite(file, target, tables string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	begin, end := "<!-- make "+target+" writes from here -->\n", "\n<!-- to here -->\n"
	before, rest, ok := strings.Cut(string(b), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s: there is no place for the tables, between %q and %q", file, begin, end)
	}
	return os.WriteFile(file, []byte(before+begin+tables+end+after), 0o644)
}
