// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// quotaWait is the longest time for which this node creates no ENIs after a refusal because of the account's quota in
// the region. If a node asked for an ENI for every pod, it would use up the calls that other nodes need to delete ENIs.
const quotaWait = registry.MostQuota

// quotaError returns an error if EC2 has lately refused an ENI because of the account's quota.
func (p *Node) quotaError() error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	until := s.Instance.QuotaUntil
	if !time.Now().Before(until) {
		return nil
	}
	return plugin.Errorf(plugin.CodeTryAgain, aws.Hint(&aws.Error{Code: "NetworkInterfaceLimitExceeded"}),
		"%w: the account can have no more ENIs in this region; this node asks again after %s", aws.ErrQuota,
		until.Format(time.RFC3339))
}

// noteQuota records that the account's quota is used up, if err means this. The record expires at a random time, so
// that the nodes do not all ask again at the same time.
func (p *Node) noteQuota(ctx context.Context, err error) error {
	if !errors.Is(err, aws.ErrQuota) {
		return err
	}
	until := time.Now().Add(quotaWait/3 + p.Cloud.Jitter(quotaWait*2/3))
	if e := p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
		s.Instance.QuotaUntil = until
	}); e != nil {
		return fmt.Errorf("%w: %w", err, e)
	}
	return err
}
