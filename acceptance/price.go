// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"fmt"
	"time"
)

// A price is the price of an instance type for an hour, in dollars: On-Demand, with Linux, without tax. A busy instance
// of a type with CPU credits costs more: at most the additional price credits.
type price struct{ hour, credits float64 }

// prices are approximate prices of us-east-1. The sources are the pages https://aws.amazon.com/ec2/pricing/on-demand,
// https://aws.amazon.com/vpc/pricing and https://aws.amazon.com/ebs/pricing in 2025. Other regions cost up to twice as
// much. A vCPU above the baseline costs $0.05 an hour. The credits are for two vCPUs, each 80 % above the baseline (EC2
// user guide, "Unlimited mode for burstable performance instances").
var prices = map[string]price{"t3.small": {0.0208, 0.08}, "t3.medium": {0.0416, 0.08}, "m5.large": {0.096, 0},
	"c5.large": {0.085, 0}}

const (
	pricesOf          = "us-east-1 in 2025"
	publicAddress     = 0.005       // for each hour of each public IPv4 address
	gigabyte          = 0.08        // for each month of a GB of gp3
	month             = 730         // hours
	leastBilled       = time.Minute // the shortest time for which EC2 bills an instance
	instances         = 2           // the number of instances that a run launches
	expectedDuration  = 15 * time.Minute
	instancesEndAfter = time.Hour // EC2 ends the instances after this time if the run does not delete them
)

// estimate returns the cost of all instances of a run for the time d. gigabytes is the size of the volumes of one
// instance.
func estimate(p price, gigabytes int, d time.Duration) (dollars float64) {
	return instances * max(d, leastBilled).Hours() * (p.hour + publicAddress + float64(gigabytes)*gigabyte/month)
}

// cost returns the estimate as a text.
func (p plan) cost(d time.Duration) string {
	text := fmt.Sprintf("about $%.3f for %v, an estimate by the prices of %s",
		estimate(prices[p.kind], p.gigabytes(), d), d.Round(time.Second), pricesOf)
	if _, known := prices[p.kind]; !known {
		text += "; without the price of " + p.kind + ", which is not known here"
	}
	return text
}

// mostCost returns the maximum cost of a run as a text. The cost is highest if neither a program nor a person deletes
// the instances, and they are busy until they end by themselves.
func (p plan) mostCost() string {
	busy, known := prices[p.kind]
	if !known {
		return fmt.Sprintf("at most %d hours of %s, whose price is not known here", instances, p.kind)
	}
	busy.hour += busy.credits
	return fmt.Sprintf("at most about $%.2f, if the instances are busy until they end by themselves; other regions "+
		"cost up to twice as much",
		estimate(busy, p.gigabytes(), instancesEndAfter))
}
